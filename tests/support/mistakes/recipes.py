"""Mistakes in recipes, sites and overrides, told before anything starts."""

from __future__ import annotations

from support.hints import Mistake

CODE = """
from lightning.pytorch import LightningModule
from torch import nn
class Block(nn.Module): ...
class Model(LightningModule):
    def __init__(self, width: int, part=None): ...
    def made(self): ...
    def training_step(self, batch): ...
    def configure_optimizers(self): ...
    def forward(self, batch): ...
class NoModule: ...
def read(path, factor): ...
"""
STEPS = "".join(CODE.splitlines(keepends=True)[7:10])
LOGGING = "def validation_step(self, batch): self.log('loss', 1.0)"
TEAMS = "../home/teams.yaml"
FSDP = {"recipe.trainer.strategy": "fsdp", "recipe.trainer.accelerator": "gpu"}
ELSEWHERE = {"site.folder": "AT/{user}"}
CSV = "lightning.pytorch.loggers.CSVLogger"
MAP = "torchmetrics.detection.MeanAveragePrecision"
OUTSIDE = {"outside": True}
OWN = {"recipe.dataset": None, "recipe.model": None, "recipe.evaluate": None}
"""Of a recipe whose script brings its own data."""
NO_PROGRAM = {f"recipe.train.{key}": None for key in ("script", "module", "command")}
PROGRAMS = (
    {"recipe.train.script": "AT/code/mine.py"},
    {"recipe.code": ["AT/code"], "recipe.train.module": "mine"},
    {"recipe.train.module": "json.tool"},
    {"recipe.train.command": ["sh", "AT/code/mine.py"]},
)


def overrides(*texts: str, **more: object) -> dict[str, object]:
    return {"overrides": list(texts), **more}


_ONE_TRANSFORM = {
    "recipe.data.transforms": [{"_target_": "headrace.data.transforms.ScaleToUnit", "maximum": 255}]
}

_CROP = {"_target_": "headrace.data.transforms.RandomResizedCrop"}
_SCALE = _ONE_TRANSFORM["recipe.data.transforms"][0]

MISTAKES = (
    # crops at decoding
    Mistake(
        what="… comes later",
        hint="Name it before all other sample_transforms, once a field, without data.dataset.",
        given={"recipe.data.sample_transforms": [_SCALE, _CROP], "recipe.pack.images": "encoded"},
        followed=({"recipe.data.sample_transforms": [_CROP, _SCALE]},),
    ),
    Mistake(
        what="… it is packed as pixels",
        hint="Set pack.fields.….keep to 'encoded'.",
        given={"recipe.data.sample_transforms": [_CROP]},
        followed=({"recipe.pack.fields.image.keep": "encoded"},),
    ),
    # who may use a site, and as whom
    Mistake(
        what="may not use site",
        hint="The author of the site file decides",
        given={"site.allowed_users": ["ada"], "user": "eve"},
        followed=({"site.allowed_users": ["ada", "eve"]},),
    ),
    Mistake(
        what="has the team '…', which is not known",
        hint="Write its users into",
        given={"site.allowed_users": ["@vision"], "user": "ada"},
        followed=({TEAMS: "vision: [ada]\n"},),
    ),
    Mistake(
        what="has the team '…', which is not known",
        hint="",
        given={"site.allowed_users": ["@visoin"], "user": "ada", TEAMS: "vision: [ada]\n"},
        followed=({"site.allowed_users": ["@vision"]},),
    ),
    *(
        Mistake(
            what=what,
            hint="Write a list of users for each team",
            given={"site.allowed_users": ["@vision"], "user": "ada", TEAMS: text},
            followed=({TEAMS: "vision: [ada, grace]\n"},),
        )
        for what, text in (("…", "vision: ada\n"), ("… cannot be read: …", "vision: [ada\n"))
    ),
    Mistake(
        what="needs the requester's name, which is unknown",
        hint="Trigger the DAG yourself",
        given={**ELSEWHERE, "user": ""},
        followed=({"user": "someone-else"}, {"site.folder": "AT/site"}),
    ),
    Mistake(
        what="is not a name of a Unix account",
        hint="Say in `accounts` of the site",
        given={**ELSEWHERE, "user": "ada@lab.org"},
        followed=({"site.accounts": {"ada@lab.org": "ada"}},),
    ),
    Mistake(
        what="is none of a person",
        hint="Accounts from uid … on may be used",
        given={**ELSEWHERE, "user": "root"},
        followed=({"site.accounts": {"root": "not-here"}},),
    ),
    # targets and their arguments
    Mistake(
        what="has no argument",
        hint="",
        given={"recipe.model.widht": 8},
        followed=({"recipe.model.widht": None},),
    ),
    Mistake(
        what="not given in the recipe",
        hint="It takes: ",
        given={"recipe.model.width": None},
        followed=({"recipe.model.width": 4},),
    ),
    Mistake(
        what="takes one … there",
        hint="ask for a run with each of them",
        given={"recipe.model.width": [4, 8]},
        followed=({"recipe.model.width": 4}, {"recipe.model.width": 8}),
    ),
    Mistake(
        what="takes one … there",
        hint="Write it as",
        given={"recipe.model.width": "wide"},
        followed=({"recipe.model.width": 8},),
    ),
    Mistake(
        what="each start of the ranks deletes the metrics.csv",
        hint="Leave it out",
        given={"recipe.trainer.loggers": [{"_target_": CSV, "version": "a"}]},
        followed=({"recipe.trainer.loggers": [{"_target_": CSV}]},),
    ),
    Mistake(
        what="is not installed on the machine that trains",
        hint="Without any package: ",
        given={
            "recipe.trainer.loggers": [{"_target_": "lightning.pytorch.loggers.CometLogger"}],
            "site.allowed_targets": ["lightning.pytorch.loggers.CometLogger"],
        },
        followed=({"recipe.trainer.loggers": [{"_target_": CSV}]},),
    ),
    Mistake(
        what="of masks keeps other things than tensors",
        hint="Compare boxes, iou_type: bbox",
        given={
            "recipe.evaluate.metrics": [{"_target_": MAP, "iou_type": "segm"}],
            "site.roles.gpu.env": {"PYTHONPATH": "/packages/of/the/nodes"},
        },
        followed=({"recipe.evaluate.metrics": [{"_target_": MAP, "iou_type": "bbox"}]},),
    ),
    Mistake(
        what="which the task … has itself",
        hint="Give it another name",
        given={"recipe.evaluate.metrics": {"accuracy": {"_target_": "torchmetrics.Accuracy"}}},
        followed=({"recipe.evaluate.metrics": {"top": {"_target_": "torchmetrics.Accuracy"}}},),
    ),
    Mistake(
        what="cannot be imported",
        hint="Correct the file",
        given={"../code/MODULE.py": "class Model(\n"},
        followed=({"../code/MODULE.py": CODE},),
    ),
    Mistake(
        what="has no …, which training calls",
        hint="Write one",
        given={"../code/MODULE.py": CODE.replace("training_step", "learn")},
        followed=({"../code/MODULE.py": CODE},),
    ),
    Mistake(
        what="which Lightning 2 does not call any more",
        hint="in its place",
        given={"../code/MODULE.py": CODE.replace("made", "training_epoch_end")},
        followed=({"../code/MODULE.py": CODE.replace("made", "on_train_epoch_end")},),
    ),
    Mistake(
        what="defines '…', which would not be used",
        hint="Take it out, or leave 'dataset' and 'datamodule' out of the recipe",
        given={"../code/MODULE.py": CODE.replace("made", "train_dataloader")},
        followed=(
            {"../code/MODULE.py": CODE},
            {"recipe.dataset": None, "recipe.evaluate": None},
        ),
    ),
    Mistake(
        what="has no train_dataloader",
        hint="Write a dataset, as in dataset: {name: mine, source: /data/mine}",
        given={"recipe.dataset": None, "recipe.evaluate": None},
        followed=({"recipe.dataset": {"name": "mine", "source": "AT/source"}},),
    ),
    Mistake(
        what="has neither predict_step nor forward",
        hint="predict_step(batch, index), which returns them; or set evaluate: null.",
        given={"../code/MODULE.py": CODE.replace("forward", "other")},
        followed=(
            {"../code/MODULE.py": CODE.replace("forward", "predict_step")},
            {"recipe.evaluate": None},
        ),
    ),
    Mistake(
        what="has no test_step, which evaluate.step: test calls",
        hint="Write one, or set evaluate.step: predict.",
        given={"recipe.evaluate": {"step": "test", "task": "custom"}},
        followed=(
            {"../code/MODULE.py": CODE.replace("made", "test_step")},
            {"recipe.evaluate": {"step": "predict"}},
        ),
    ),
    Mistake(
        what="which does not run where each shard is tested on its own",
        hint="Log in test_step",
        given={
            "recipe.evaluate": {"step": "test", "task": "custom"},
            "../code/MODULE.py": CODE.replace(
                "def made(self): ...",
                "def test_step(self, batch): ...\n    def on_test_end(self): self.made = 1",
            ),
        },
        followed=({"../code/MODULE.py": CODE.replace("made", "test_step")},),
    ),
    Mistake(
        what="which the model … does not log",
        hint="Log it in validation_step",
        given={"recipe.trainer.monitor": "loss"},
        followed=({"../code/MODULE.py": CODE.replace("def made(self): ...", LOGGING)},),
    ),
    Mistake(
        what="…",
        hint="They are in",
        given={"recipe.model._target_": "MODULE.Modle"},
        followed=({"recipe.model._target_": "MODULE.Model"},),
    ),
    Mistake(
        what="not a …",
        hint="Wrap it in a",
        given={"recipe.model._target_": "MODULE.NoModule", "recipe.model.width": None},
        followed=(
            {
                "../code/MODULE.py": CODE.replace(
                    "NoModule: ...\n", f"NoModule(LightningModule):\n{STEPS}"
                )
            },
        ),
    ),
    Mistake(
        what="not a …",
        hint="Derive it from",
        given={"recipe.trainer.callbacks": [{"_target_": "MODULE.NoModule"}]},
        followed=(
            {
                "../code/MODULE.py": CODE.replace(
                    "NoModule: ...", "NoModule(lightning.pytorch.callbacks.Callback): ..."
                ).replace("class", "import lightning.pytorch\n\n\nclass", 1)
            },
        ),
    ),
    Mistake(
        what=", and no module is called '",
        hint="Correct the name, install its package",
        given={"terminal": True, "recipe.model._target_": "mime.Model"},
        followed=({"recipe.model._target_": "MODULE.Model"}, {"../code/mime.py": CODE}),
    ),
    Mistake(
        what="and the suite was started in a terminal",
        hint="Add others in a terminal: headrace suite add",
        given={"points": [{"model.name": "b"}]},
        followed=({"points": [{"model.name": "a"}]}, {"points": [{"model.width": [8, None]}]}),
    ),
    Mistake(
        what="The site does not allow the target",
        hint="or put your code below one of its",
        given={"recipe.model": {"_target_": "sklearn.linear_model.Ridge"}},
        followed=(
            {"site.allowed_targets": ["sklearn.linear_model.Ridge"]},
            {"recipe.model": {"_target_": "MODULE.Model", "width": 8}},
        ),
    ),
    Mistake(
        what="is an attribute, not a class or function",
        hint="Name the class itself",
        given={"recipe.model._target_": "MODULE.Model.made"},
        followed=({"recipe.model._target_": "MODULE.Model"},),
    ),
    Mistake(
        what="but 'trainer.extra' holds plain values",
        hint="loggers to 'trainer.loggers'",
        given={"recipe.trainer.extra": {"plugins": {"_target_": CSV}}},
        followed=({"recipe.trainer.extra": None, "recipe.trainer.loggers": [{"_target_": CSV}]},),
    ),
    Mistake(
        what="does not allow code from",
        hint="Move the code there, or add its folder to",
        given={"recipe.code": ["AT/mine"], "../mine/MODULE.py": CODE},
        followed=({"recipe.code": ["AT/code"]}, {"site.allowed_code": ["AT/mine"]}),
    ),
    Mistake(
        what="… is …",
        hint="Valid: ….",
        given={"recipe.model.part": {"_target_": "torch.nn.ReLU", "_partial_": "yes"}},
        followed=({"recipe.model.part": {"_target_": "torch.nn.ReLU", "_partial_": True}},),
    ),
    Mistake(
        what="has the unknown key",
        hint="",
        given={"recipe.model.part": {"_target_": "torch.nn.ReLU", "_partail_": True}},
        followed=({"recipe.model.part": {"_target_": "torch.nn.ReLU", "_partial_": True}},),
    ),
    Mistake(
        what="but no '_target_'",
        hint="Name one, or leave it out",
        given={"recipe.model.part": {"_partial_": True}},
        followed=(
            {"recipe.model.part": {"_target_": "torch.nn.ReLU", "_partial_": True}},
            {"recipe.model.part": {}},
        ),
    ),
    # what a recipe asks of a site
    Mistake(
        what="but dataset.labels is 'none'",
        hint="Say where labels come from",
        given={"recipe.dataset.labels": "none"},
        followed=(
            {"recipe.dataset.labels": "folders"},
            {"recipe.dataset.labels": "index", "recipe.dataset.index": "l.csv"},
            {"recipe.dataset.labels": "field", "recipe.dataset.label_field": "cls"},
            {"recipe.evaluate.task": "custom"},
            {"recipe.evaluate": None},
        ),
    ),
    Mistake(
        what="has no 'dataset': its own code brings the data",
        hint="Name one, as in dataset: ",
        given={
            "packed": True,
            "recipe.dataset": None,
            "recipe.model": None,
            "recipe.evaluate": None,
            "recipe.train.script": "AT/code/mine.py",
        },
        followed=({"recipe.dataset": {"name": "mine", "source": "AT/source"}},),
    ),
    *(
        Mistake(
            what="train.… needs …, which does not exist",
            hint="Name a Python file in train.script",
            given={**OWN, "recipe.code": [], **given},
            followed=tuple({**NO_PROGRAM, **each} for each in PROGRAMS),
        )
        for given in (
            {"recipe.train.script": "AT/code/gone.py"},
            {"recipe.train.module": "mine"},
            {"recipe.train.command": ["AT/code/mine.py"]},
        )
    ),
    Mistake(
        what="for the role '…', which site",
        hint="",
        given={"recipe.train.role": "gup"},
        followed=({"recipe.train.role": "gpu"},),
    ),
    Mistake(
        what="does not let recipes go",
        hint="For more, write into the site: ",
        given={"recipe.dataset.source": "/data/raw"},
        followed=({"recipe.dataset.source": "AT/source"}, {"site.allowed_sources": ["/data/raw"]}),
    ),
    Mistake(
        what="in the home of a user whom this machine does not know",
        hint="Correct the user's name, or write the whole path",
        given={"recipe.code": ["~no-such-user/code"]},
        followed=({"recipe.code": ["AT/code"]},),
    ),
    Mistake(
        what="', no path",
        hint="Write the whole path",
        given={"recipe.trainer.loggers": [{"_target_": CSV, "save_dir": "$HOME/logs"}]},
        followed=({"recipe.trainer.loggers": [{"_target_": CSV, "save_dir": "AT/out/logs"}]},),
    ),
    Mistake(
        what="ranks cannot share equally",
        hint="Nearest valid: ",
        given={"recipe.data.global_batch_size": 63},
        followed=({"recipe.data.global_batch_size": 62}, {"recipe.data.global_batch_size": 64}),
    ),
    Mistake(
        what=", but role '",
        hint="Ask for fewer, or change roles.",
        given={"recipe.train.nodes": 2},
        followed=({"recipe.train.nodes": 1}, {"site.roles.gpu.nodes": 2}),
    ),
    Mistake(
        what="ranks cannot be divided",
        hint="Set it to a divisor of",
        given={**FSDP, "recipe.trainer.fsdp.tensor_parallel_size": 3},
        followed=({"recipe.trainer.fsdp.tensor_parallel_size": 2},),
    ),
    # overrides
    Mistake(
        what="removes a key that does not exist",
        hint="To change a list, write all of it: trainer.callbacks=[]",
        given=overrides("~model.widht"),
        followed=(
            overrides("~model.width", "+model.width=4"),
            overrides(),
            overrides("trainer.callbacks=[]"),
        ),
    ),
    Mistake(
        what="names several values, and a run has one",
        hint="A list has brackets",
        given=overrides("dataset.include=a*,b*"),
        followed=(
            overrides("dataset.include=['a*','b*']"),
            overrides("dataset.label_field='a,b'", **{"recipe.dataset.labels": "field"}),
        ),
    ),
    Mistake(
        what="The value of the override",
        hint="Put a text in quotes",
        given=overrides("dataset.include=#*"),
        followed=(overrides("dataset.include=['#*']"),),
    ),
    Mistake(
        what="of a mapping, which is not text there",
        hint="Write a mapping, as in",
        given=overrides("trainer.compile={options: {0: 1}}", "trainer.compile.options.0=3"),
        followed=(overrides("trainer.compile={options: {0: 3}}"),),
    ),
    Mistake(
        what="is not of the form key=value",
        hint="Write for example trainer.max_epochs=3",
        given=overrides("trainer.max_epochs"),
        followed=(
            overrides("trainer.max_epochs=3"),
            overrides("+trainer.max_steps=3"),
            overrides("~seed"),
        ),
    ),
    Mistake(
        what="is malformed",
        hint="Write up to",
        given=overrides(f"{'a.' * 200}b=1"),
        followed=(overrides("trainer.max_epochs=1"),),
    ),
    Mistake(
        what="adds a key that exists",
        hint="To change it: ",
        given=overrides("+model.width=4"),
        followed=(overrides("model.width=4"),),
    ),
    Mistake(
        what="does not fit the recipe:",
        hint="Entries of a list are numbered",
        given={
            **overrides("data.transforms={maximum: 1}"),
            **_ONE_TRANSFORM,
        },
        followed=(overrides("data.transforms[0].maximum=1"),),
    ),
    Mistake(
        what="names the entry … of a list of … entries",
        hint="Entries of a list are numbered",
        given={
            **overrides("data.transforms[1].maximum=1"),
            **_ONE_TRANSFORM,
        },
        followed=(overrides("data.transforms[0].maximum=1"),),
    ),
    Mistake(
        what="names an entry of a list, but there is no list",
        hint="Entries of a list are numbered",
        given=overrides("model[0].width=1"),
        followed=(overrides("model.width=1"),),
    ),
    Mistake(
        what="The overrides are",
        hint="Write them into a recipe file",
        given=overrides(*["model.width=4"] * 501),
        followed=(overrides(**{"recipe.model.width": 4}),),
    ),
    Mistake(
        what="which only a recipe's file may set",
        hint="no code, targets and programs are taken",
        given=overrides("code=[AT/code]", **OUTSIDE),
        followed=(overrides(**{"recipe.code": ["AT/code"]}),),
    ),
    Mistake(
        what="holds an interpolation",
        hint="write interpolations into a recipe",
        given=overrides("model.width=${seed}", **OUTSIDE),
        followed=(overrides("model.width=7"), overrides(**{"recipe.model.width": "${seed}"})),
    ),
    Mistake(
        what="which only a recipe's file may set",
        hint="those of callbacks, loggers and Lightning's Trainer numbers, true and false",
        given=overrides(
            "trainer.extra.profiler=simple",
            **OUTSIDE,
            **{"recipe.trainer.loggers": [{"_target_": CSV}]},
        ),
        followed=(
            overrides(**{"recipe.trainer.extra": {"profiler": "simple"}}),
            overrides("trainer.loggers[0].flush_logs_every_n_steps=5"),
        ),
    ),
)
