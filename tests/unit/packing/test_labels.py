"""Class names become numbers."""

from headrace.packing.listed import labels_of


def test_classes_are_ordered_by_alphabet_or_by_number() -> None:
    labels = labels_of(["dog", "cat", "dog"])
    assert labels.classes == ("cat", "dog")
    assert list(labels.indices) == [1, 0, 1]
    assert labels_of(["10", "9", "0"]).classes == ("0", "9", "10")


def test_an_order_of_the_source_is_kept() -> None:
    labels = labels_of(["dog", "cat"], ["dog", "fish", "cat"])
    assert labels.classes == ("dog", "fish", "cat")
    assert list(labels.indices) == [0, 2]
