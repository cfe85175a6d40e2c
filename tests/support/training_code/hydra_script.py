"""A script configured by Hydra; beside it the files of its configuration."""

import hydra

from headrace import script


@hydra.main(version_base="1.3", config_path="hydra_conf", config_name="config")
def main(config):
    for step in range(1, config.steps + 1):
        script.report(
            step, total_steps=config.steps, loss=config.optimizer.lr / step, top5=float("nan")
        )
        if step == 2 and script.stop_asked():
            with script.saving("half.txt") as path:
                path.write_text(str(step))
            script.pause(step)
    with script.saving("done.txt") as path:
        path.write_text(f"{config.optimizer.name} from {script.newest()}")


if __name__ == "__main__":
    main()
