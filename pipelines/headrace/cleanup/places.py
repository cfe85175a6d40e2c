"""The folders in which headrace keeps files: of sites, of the home, of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.builds import builds_folder
from headrace.errors import HeadraceError
from headrace.files.atomic import read_record
from headrace.files.layout import RunFolder, SiteFolder
from headrace.ledger.many_runs import Packing
from headrace.recipe.home import home
from headrace.recipe.load import available, load_site
from headrace.recipe.site import Site, StoreOptions
from headrace.staging.cache import CachedCopy, copies_of

if TYPE_CHECKING:
    from headrace.objects.s3 import S3Store

MOST = 10**7
"""More runs than a ledger has."""


def sites() -> tuple[Site, ...]:
    """Return the sites that can be loaded here."""
    found = []
    for name in available("sites"):
        with suppress(HeadraceError):  # of another account, or being written
            found.append(load_site(name))
    return tuple(found)


def site_folders(folders: Iterable[str], known: Iterable[Site]) -> tuple[SiteFolder, ...]:
    """Return the folders of sites, by the folders of their runs and by their files."""
    paths = {str(Path(folder).parents[1]) for folder in {*folders} if folder.count("/") > 2}
    paths |= {site.folder for site in known if Path(site.folder).is_dir()}
    return tuple(SiteFolder(Path(each)) for each in sorted(paths))


def caches(folders: Iterable[SiteFolder]) -> dict[str, list[Path]]:
    """Return what lies in caches, by title; each may go, and is made again when it is needed."""
    airflow = home() / "airflow" / "logs" / "tasks"
    return {
        "environments": _in(home() / "environments"),
        "compiled extensions": _in(builds_folder().parent),
        "images": [image for each in folders for image in _in(each.path / "images")],
        "Airflow's logs": sorted(airflow.glob("dag_id=*/run_id=*")),
    }


def _in(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("*") if each.name[0] != ".")


def staged(known: Iterable[Site]) -> Iterator[CachedCopy]:
    """Yield the staged copies on this machine."""
    tiers = {tier.folder: tier for site in known for tier in site.tiers}
    yield from copies_of([*tiers.values()])


def store_of(url: str, packing: Packing) -> S3Store:
    """Return the S3 prefix of a dataset, reached as the run that packed it did."""
    from headrace.objects.s3 import S3Store  # imports s3fs

    site = read_record(RunFolder(Path(packing.folder)).site, Site)
    return S3Store(url, StoreOptions() if site is None else site.s3)


def datasets(packings: Iterable[Packing]) -> dict[str, list[Packing]]:
    """Return the datasets that runs of the ledger packed or found packed, by folder or URL.

    Only those in the folder of datasets of the run's site, and in S3.
    """
    found: dict[str, list[Packing]] = {}
    for each in packings:
        place, site = str(each.outputs.get("dataset")), Path(each.folder).parent.parent
        is_own = Path(place).parent == SiteFolder(site).datasets and Path(place).is_dir()
        if is_own or place.startswith("s3://"):
            found.setdefault(place.rstrip("/"), []).append(each)
    return found
