"""A script configured by key=value, as Hydra's are: defaults, then what the command line says."""

import os
import sys
from pathlib import Path

from omegaconf import OmegaConf

from headrace import script

defaults = {"optimizer": {"lr": 0.1}, "steps": 4, "run": {"dir": os.environ["HEADRACE_RUN_FOLDER"]}}
config = OmegaConf.merge(defaults, OmegaConf.from_cli(sys.argv[1:]))
OmegaConf.save(config, Path(config.run.dir) / "config.yaml")
for step in range(1, config.steps + 1):
    script.report(
        step, total_steps=config.steps, loss=config.optimizer.lr / step, top5=float("nan")
    )
    if step == 2 and script.stop_asked():
        with script.saving("half.txt") as path:
            path.write_text(str(step))
        script.pause(step)
with script.saving("done.txt") as path:
    path.write_text(f"from {script.newest()}")
