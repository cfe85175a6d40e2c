from __future__ import annotations

from chaos.campaign.trials import TARGETS, draw

LOST_AFTER_S = 8.0


def test_trials_disturb_every_process_of_every_phase_and_are_drawn_again_from_their_seed():
    trials = [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert trials == [draw(1, number, LOST_AFTER_S) for number in range(200)]
    assert {(trial.phase, trial.role) for trial in trials} == set(TARGETS)
    halts = [trial.halt_s for trial in trials if trial.signal == "stop"]
    assert min(halts) < LOST_AFTER_S / 2 < LOST_AFTER_S * 1.5 < max(halts)
    assert {trial.halt_s for trial in trials if trial.signal == "kill -9"} == {0.0}
    assert trials[1].earlier(2).moment == trials[1].moment / 4
