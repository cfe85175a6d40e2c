"""Code with line_profiler's `@profile`: a script, a function and a model."""

from blob_models import BlobModel
from line_profiler import profile


@profile
def work():
    return sum(range(1000))


def value():
    return {"value": float(work())}


class ProfiledModel(BlobModel):
    def training_step(self, batch, index):
        work()
        return super().training_step(batch, index)


if __name__ == "__main__":
    work()
