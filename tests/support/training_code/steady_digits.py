"""User code of the tests of several sites: training whose steps take as long as its site says."""

import os
import time

from headrace.examples.digits_model import DigitsClassifier


class SteadyDigits(DigitsClassifier):
    """The model of the demo; each step begins with `STEP_S` seconds of sleep."""

    def on_train_batch_start(self, batch, batch_idx):
        time.sleep(float(os.environ.get("STEP_S", "0")))
