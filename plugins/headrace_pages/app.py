"""The FastAPI app of headrace's pages: the shell, its files, and the pages' data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import Field
from starlette.types import Scope

from headrace.errors import HeadraceError, StepError, UnknownNameError, UserError, shortened
from headrace.ledger.ledger import open_ledger
from headrace.ledger.run_filter import RunFilter
from headrace.status.cost import By, cost_page
from headrace.status.dataset import dataset_page, datasets_page
from headrace.status.lease import leases_page
from headrace.status.logs import MOST_LINES, log_page, report_file
from headrace.status.run_list import check_refused
from headrace.status.run_page import RunPage, compare_page, curves_page, run_page
from headrace.status.suite import trials_page
from headrace_airflow.airflow_api import DagRunAddress
from headrace_pages import acts, added, proxy
from headrace_pages.access import Asker, MayAct, VisibleSites, reads, sees_runs
from headrace_pages.answers import PRIVATE, Answers
from headrace_pages.frontier import suite_with_picture
from headrace_pages.sample_page import sample_page
from headrace_pages.samples import SampleQuestion

STATIC = Path(__file__).parent / "static"
PAGES = ("run", "suite", "leases", "datasets", "cost", "dask", "tensorboard")
"""Pages besides the list of runs, by their addresses."""

_LIVELY = {"Cache-Control": "no-cache", "Content-Security-Policy": "frame-ancestors 'self'"}

_HARMLESS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; font-src data:; "
    "style-src 'unsafe-inline'; frame-ancestors 'self'",
    **PRIVATE,
}
_MOST_COMPARED = 100
_NO_PAGE = JSONResponse({"detail": {"what": "There is no such page", "hint": ""}}, 404)

Id = Annotated[str, Query(alias="id", max_length=500)]
Place = Annotated[int, Query(ge=0, lt=2**63)]
Names = Annotated[list[str], Query(alias="id", min_length=1, max_length=_MOST_COMPARED)]

app = FastAPI(title="headrace", openapi_url=None)
data = APIRouter(prefix="/data", dependencies=[reads])
answers = Answers(within=lambda: open_ledger().snapshot())
from_storage = Answers()
"""Answers that depend on storage, which may be slow: the other pages do not wait for it."""


class PageFilter(RunFilter):
    """A filter of the list of runs."""

    limit: int = Field(default=200, ge=1, le=1000)


class _Files(StaticFiles):
    """Static files that browsers revalidate, because a release may have changed them."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return the file, or 304."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


@app.get("/")
def runs_shell() -> HTMLResponse:
    """Return the page of all runs; it holds no data."""
    content = added.shell((STATIC / "index.html").read_text())
    return HTMLResponse(content, headers=_LIVELY)


@app.get("/{page}/")
def shell(page: str) -> Response:
    """Return the other pages: the same file, one folder further down."""
    if page not in PAGES and page not in added.added():
        return _NO_PAGE
    content = added.shell((STATIC / "index.html").read_text()).replace('="static/', '="../static/')
    return HTMLResponse(content, headers=_LIVELY)


@app.get("/added/{name}.js")
def script(name: str) -> Response:
    """Return the script of another package's page; it holds no data."""
    page = added.added().get(name)
    if page is None or not page.title:
        return _NO_PAGE
    return FileResponse(page.script, media_type="text/javascript", headers=_LIVELY)


@data.get("/added")
async def of_added(request: Request, name: str, sites: VisibleSites) -> Response:
    """Return the data of another package's page."""
    page = added.added().get(name)
    if page is None or page.answer is None:
        return _NO_PAGE
    return await answers.send(request, partial(page.answer, sites))


@data.get("/runs")
async def runs(
    request: Request,
    sites: VisibleSites,
    asker: Asker,
    wanted: Annotated[PageFilter, Query()],
) -> Response:
    """Return the runs that a filter lets through."""
    return await answers.send(request, partial(added.runs_with_columns, wanted, sites, asker))


@data.get("/run", dependencies=[sees_runs])
async def run(
    request: Request,
    can_act: MayAct,
    asker: Asker,
    run_id: Annotated[str, Query(alias="id")] = "",
    dag_id: str = "",
    dag_run_id: str = "",
) -> Response:
    """Return one run, by its id or by its DAG run; or why its DAG run was refused."""
    dag_run = DagRunAddress.parse(run_id)
    if dag_id:
        dag_run = DagRunAddress(dag_id=dag_id, run_id=dag_run_id)
    if dag_run is not None:
        question = partial(_run_of, dag_run, can_act, asker)
    else:
        question = partial(run_page, run_id, can_act=can_act)
    return await answers.send(request, question)


def _run_of(dag_run: DagRunAddress, can_act: bool, asker: str) -> RunPage:
    try:
        record = dag_run.run()
    except UnknownNameError:
        check_refused(str(dag_run), asker)
        raise
    return run_page(record.run_id, can_act=can_act)


@data.get("/run/log", dependencies=[sees_runs])
async def log(
    request: Request,
    run_id: Id,
    step: str,
    attempt: int,
    name: str,
    lines: Annotated[int, Query(ge=1, le=MOST_LINES)] = 200,
) -> Response:
    """Return the end of a log."""
    return await answers.send(request, partial(log_page, run_id, step, attempt, name, lines))


@data.get("/run/report", dependencies=[sees_runs])
def report(run_id: Id) -> Response:
    """Return the report; the user's own HTML in it runs no scripts."""
    return FileResponse(report_file(run_id), media_type="text/html", headers=_HARMLESS)


@data.get("/curves", dependencies=[sees_runs])
async def curves(request: Request, names: Names) -> Response:
    """Return the curves of up to a hundred runs or trials."""
    return await answers.send(request, partial(curves_page, tuple(names)))


@data.get("/compare", dependencies=[sees_runs])
async def compare(request: Request, names: Names) -> Response:
    """Return the differences between up to a hundred runs or trials."""
    return await answers.send(request, partial(compare_page, tuple(names)))


@data.get("/suite", dependencies=[sees_runs])
async def suite(request: Request, run_id: Id, can_act: MayAct) -> Response:
    """Return one suite."""
    return await answers.send(request, partial(suite_with_picture, run_id, can_act=can_act))


@data.get("/trials", dependencies=[sees_runs])
async def trials(request: Request, run_id: Id, since: Place = 0) -> Response:
    """Return the trials of a suite, or those that have changed."""
    return await answers.send(request, partial(trials_page, run_id, since))


@data.get("/leases")
async def leases(request: Request, can_act: MayAct, sites: VisibleSites) -> Response:
    """Return open leases, and the last ended ones."""
    return await answers.send(request, partial(leases_page, can_act=can_act, sites=sites))


def _sample_question(
    split: Annotated[str, Query(max_length=200)],
    index: Place = 0,
    label: Annotated[int, Query(ge=-(2**63), lt=2**63)] | None = None,
    back: bool = False,
    frame: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> SampleQuestion:
    return SampleQuestion(split=split, index=index, label=label, is_back=back, frame=frame)


@data.get("/datasets")
async def datasets(request: Request, sites: VisibleSites) -> Response:
    """Return the packed datasets."""
    return await from_storage.send(request, partial(datasets_page, sites))


@data.get("/dataset")
async def dataset(request: Request, name: Id, sites: VisibleSites) -> Response:
    """Return one dataset, by its fingerprint or name."""
    return await from_storage.send(request, partial(dataset_page, name, sites))


@data.get("/sample")
async def sample(
    request: Request,
    name: Id,
    sites: VisibleSites,
    question: Annotated[SampleQuestion, Depends(_sample_question)],
) -> Response:
    """Return one sample of a dataset."""
    return await from_storage.send(request, partial(sample_page, name, question, sites))


@data.get("/cost")
async def cost(request: Request, sites: VisibleSites, by: By = "month") -> Response:
    """Return what runs took, by month, user and so on."""
    return await answers.send(request, partial(cost_page, by, sites))


@app.exception_handler(RequestValidationError)
async def _malformed(_request: Request, error: RequestValidationError) -> JSONResponse:
    """Answer a request with invalid values; they are not repeated, because some are not texts."""
    problems = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    what = "; ".join(problems).encode(errors="backslashreplace").decode()
    return JSONResponse({"detail": {"what": shortened(what, 1000), "hint": ""}}, 422)


@app.exception_handler(HeadraceError)
async def _refused(_request: Request, error: HeadraceError) -> JSONResponse:
    """Answer with an error of headrace and its text."""
    status = 503
    if isinstance(error, UnknownNameError):
        status = 404
    elif isinstance(error, (UserError, StepError)):
        status = 409
    return JSONResponse({"detail": {"what": error.what, "hint": error.hint}}, status)


@app.exception_handler(OSError)
async def _unreadable(_request: Request, error: OSError) -> JSONResponse:
    """Answer if Airflow's API server cannot read a file: its permissions or the disk fail."""
    what, hint = f"{error.filename} cannot be read: {error.strerror}", "Ask the run's owner."
    return JSONResponse({"detail": {"what": what, "hint": hint}}, 503)


app.include_router(data)
app.include_router(acts.router)
app.include_router(proxy.router)
app.mount("/static", _Files(directory=STATIC))
