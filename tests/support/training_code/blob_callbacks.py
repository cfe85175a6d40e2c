"""A callback whose state is more than plain values."""

import datetime

from lightning.pytorch import Callback


class KeepsADate(Callback):
    def state_dict(self):
        return {"day": datetime.date(2020, 1, 1)}

    def load_state_dict(self, state_dict):
        assert state_dict["day"].year == 2020
