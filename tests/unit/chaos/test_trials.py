from __future__ import annotations

from chaos.campaign.trials import TARGETS, draw

LOST_AFTER_S = 8.0


def test_a_trial_is_drawn_again_from_seed_and_number():
    assert draw(3, 5, LOST_AFTER_S) == draw(3, 5, LOST_AFTER_S)
    assert draw(3, 5, LOST_AFTER_S) != draw(3, 6, LOST_AFTER_S)
    assert draw(3, 5, LOST_AFTER_S) != draw(4, 5, LOST_AFTER_S)


def test_two_hundred_trials_disturb_every_process_of_every_phase():
    trials = [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert {(trial.phase, trial.role) for trial in trials} == set(TARGETS)
    assert {trial.signal for trial in trials} == {"kill -9", "stop"}


def test_halts_are_shorter_and_longer_than_what_counts_as_loss():
    trials = [draw(1, number, LOST_AFTER_S) for number in range(200)]
    halts = [trial.halt_s for trial in trials if trial.signal == "stop"]
    assert min(halts) < LOST_AFTER_S / 2
    assert max(halts) > LOST_AFTER_S * 1.5
    assert {trial.halt_s for trial in trials if trial.signal == "kill -9"} == {0.0}


def test_a_moment_that_came_too_late_is_halved():
    trial = draw(1, 1, LOST_AFTER_S)
    assert trial.earlier(0) == trial
    assert trial.earlier(2).moment == trial.moment / 4
    assert trial.earlier(2).phase == trial.phase
