"""The authors' code, imported from clones and run on a CPU in single precision; nothing of it is changed on disk."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from importlib import import_module
from io import StringIO
from pathlib import Path
from subprocess import run
from types import ModuleType
from typing import Any
from unittest import mock

import packaging.version
import torch

# What only loads data, draws progress or measures: without it the authors' methods are the same.
OPTIONAL = {
    "torchvision": ("torchvision.transforms", "torchvision.datasets", "torchvision.models"),
    "ftfy": (),
    "gdown": (),
    "pkg_resources": (),
    "scipy": ("scipy.io",),
    "wandb": (),
    "yacs": ("yacs.config",),
}
# The engine of Dassl imports its data loaders, TensorBoard and scikit-learn. CoOp needs three short methods of it.
ENGINE = "dassl.engine"


@dataclass(frozen=True)
class Repository:
    """A repository of authors: its option on the command line, its address, and a file that a clone of it has."""

    option: str
    address: str
    file: str

    @property
    def name(self) -> str:
        """Name of the repository without its owner."""
        return self.address.partition("/")[2]

    def clone_command(self, folder: str) -> str:
        """Return how to get it."""
        return f"git clone https://github.com/{self.address} {folder}/{self.name}"


REPOSITORIES = (
    Repository("tda", "kdiAAA/TDA", "tda_runner.py"),
    Repository("tpt", "azshue/TPT", "tpt_classification.py"),
    Repository("coop", "KaiyangZhou/CoOp", "trainers/coop.py"),
    Repository("difftpt", "chunmeifeng/DiffTPT", "difftpt_utils.py"),
    Repository("tip-adapter", "gaopengcuhk/Tip-Adapter", "main.py"),
    Repository("dassl", "KaiyangZhou/Dassl.pytorch", "dassl/optim/lr_scheduler.py"),
)


@dataclass
class Clones:
    """The clones of the authors' repositories, and what stood in for packages that they import.

    Attributes:
        folders: where they are, by option.
        stood_in: packages that are not on this machine.
    """

    folders: Mapping[str, Path]
    stood_in: list[str] = field(default_factory=list)

    def commits(self) -> list[str]:
        """Return the addresses of the repositories, with the commit where the clone is one of git."""
        lines = []
        for each in REPOSITORIES:
            folder = self.folders[each.option]
            command = ["git", "-C", str(folder), "rev-parse", "--short=7", "HEAD"]
            found = run(command, capture_output=True, text=True, check=False).stdout.strip()
            lines.append(f"{each.address} {found if (folder / '.git').exists() else 'of unknown commit'}")
        return lines

    @contextmanager
    def importing(self, option: str) -> Iterator[Callable[[str], ModuleType]]:
        """Provide a function that imports modules of a repository, whose names others have, too."""
        folders = [str(self.folders[option])]
        if option == "coop":
            folders.append(str(self.folders["dassl"]))
        own = {path.stem for folder in folders for path in Path(folder).iterdir()}
        hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] in own}
        path = list(sys.path)
        sys.path[:0] = folders
        stands = self._stand_ins()
        schedule = mock.patch.object(torch.optim.lr_scheduler, "_LRScheduler", Schedule)
        try:
            with mock.patch.dict(sys.modules, stands), schedule, _quiet():
                yield import_module
        finally:
            sys.path[:] = path
            for name in [name for name in sys.modules if name.partition(".")[0] in own]:
                del sys.modules[name]
            sys.modules.update(hidden)

    def _stand_ins(self) -> dict[str, ModuleType]:
        """Return modules to be imported in place of packages that are not on this machine."""
        stands: dict[str, ModuleType] = {}
        for package, inner in OPTIONAL.items():
            if not can_import(package):
                stands |= {name: StandIn(name) for name in (package, *inner)}
                if package not in self.stood_in:
                    self.stood_in.append(package)
        for package, names in USED.items():
            if package.partition(".")[0] in stands:
                vars(stands[package]).update(names)
        if "torchvision" in stands:
            vars(stands["torchvision"])["transforms"] = stands["torchvision.transforms"]
        return stands | {ENGINE: StandIn(ENGINE, TRAINER_REGISTRY=Registry(), TrainerX=Trainer)}


def can_import(package: str) -> bool:
    """Return whether a package can be imported; of torchvision its Python part is enough."""
    if package == "torchvision" and package not in sys.modules:
        # Its compiled operators, which nothing here uses, load only beside the PyTorch that they were built for.
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
    try:
        import_module(package)
    except (ImportError, OSError, RuntimeError):  # also one that was built for another PyTorch
        return False
    return True


@contextmanager
def single_precision() -> Iterator[None]:
    """Let `.cuda()` change nothing and `.half()` give single precision; what the authors print goes nowhere."""
    same = {"cuda": lambda self, *_, **__: self, "half": lambda self: self.float()}
    with mock.patch.multiple(torch.Tensor, **same), mock.patch.multiple(torch.nn.Module, **same), _quiet():
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


class _AnyName(type):
    """The type of names that are only mentioned: they have any attribute."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (Mentioned,), {})


class Mentioned(metaclass=_AnyName):
    """A class of a package that is not on this machine; code may name it or inherit from it, and not make one."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError(f"{type(self).__name__} is of a package that is not on this machine; install it.")


class StandIn(ModuleType):
    """A module in place of one that is not on this machine: it has the given names, and any that is not called."""

    __path__: Sequence[str] = ()  # as packages have, so that what is in it can be imported

    def __init__(self, name: str, **names: Any) -> None:
        super().__init__(name)
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (Mentioned,), {})


class Config(dict[str, Any]):
    """Settings as attributes, as yacs has them."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def clone(self) -> "Config":
        """Return a copy."""
        return Config({name: value.clone() if isinstance(value, Config) else value for name, value in self.items()})


class Schedule(torch.optim.lr_scheduler.LRScheduler):
    """PyTorch's schedule, with the argument `verbose` that Dassl passes and PyTorch has no more."""

    def __init__(self, optimizer: Any, last_epoch: int = -1, verbose: bool = False) -> None:
        super().__init__(optimizer, last_epoch)


class Registry:
    """A registry that registers nothing."""

    def register(self) -> Callable[[type], type]:
        """Return a decorator that changes nothing."""
        return lambda trainer: trainer


class Trainer:
    """What CoOp needs of Dassl's trainer: a step of the optimiser for a loss, one of the schedule for an epoch."""

    device = "cpu"

    def register_model(self, name: str, model: Any, optim: Any, sched: Any) -> None:
        """Do nothing: the trainer has all three as attributes."""

    def model_backward_and_update(self, loss: Any) -> None:
        """Take a step."""
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()

    def update_lr(self) -> None:
        """End an epoch."""
        self.sched.step()


# The few names of such packages that the authors' methods do call
USED: dict[str, dict[str, Any]] = {
    "ftfy": {"fix_text": lambda text: text},
    "pkg_resources": {"packaging": packaging},
    "wandb": {"log": lambda *_, **__: None},
    "yacs.config": {"CfgNode": Config},
}
