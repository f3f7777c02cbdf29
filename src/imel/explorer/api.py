"""The explorer's answers: what the page asks for, as JSON or packed arrays."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from imel.explorer.answers import MEDIA_TYPE, describe, describe_memory, describe_step, pack
from imel.explorer.insight import Colour, Projection
from imel.explorer.session import Session

Array = NDArray[Any]
ModelKey = Annotated[str, Query(pattern=r"^m\d{1,4}(e\d{1,6})?$")]
Name = Annotated[str, Query(pattern=r"^[a-z]\d{1,9}$")]
Row = Annotated[int, Query(ge=0, lt=1 << 31)]
Dimension = Annotated[int, Query(ge=0, lt=1 << 16)]


def _on_map(
    frame: ModelKey, projection: Projection, x: Dimension = 0, y: Dimension = 1
) -> tuple[str, Projection, int, int]:
    """Whose map it is, and what its axes are."""
    return frame, projection, x, y


OnMap = Annotated[tuple[str, Projection, int, int], Depends(_on_map)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Body(_Strict):
    model: str = Field(pattern=r"^m\d{1,4}(e\d{1,6})?$")


class ForgetBody(_Body):
    """Which memories are left out of which model."""

    rows: list[Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)]] = Field(
        min_length=1, max_length=1 << 20
    )


class PlayBody(_Body):
    """An episode to record."""

    seed: int = Field(default=0, ge=0, lt=1 << 31)
    noise: bool = False


class RememberBody(_Body):
    """A remembered episode."""

    episode: int = Field(ge=-(1 << 31), lt=1 << 31)


class EvaluateBody(_Body):
    """How many episodes are played."""

    episodes: int = Field(default=8, ge=1, le=32)


class StopBody(_Strict):
    """A job to stop."""

    job: str = Field(pattern=r"^j\d{1,9}$")


def _packed(document: dict[str, Any], arrays: dict[str, Array]) -> Response:
    return Response(pack(document, arrays), media_type=MEDIA_TYPE)


def make_router(session: Session) -> APIRouter:
    """All questions, about one session."""
    router = APIRouter(prefix="/api")
    _add_models(router, session)
    _add_pictures(router, session)
    _add_episodes(router, session)
    _add_actions(router, session)
    return router


def _add_models(router: APIRouter, session: Session) -> None:
    @router.get("/run")
    def run() -> dict[str, Any]:
        files = session.run
        return {
            "title": files.title,
            "env": files.env,
            "curve": session.curve,
            "newest": describe(session.insight(session.newest)),
            "models": [
                {"key": f"m{number}"}
                | {n: getattr(stored, n) for n in ("label", "iteration", "timesteps", "problem")}
                for number, stored in enumerate(files.models)
            ],
        }

    @router.get("/model")
    def model(model: ModelKey) -> dict[str, Any]:
        return describe(session.insight(model))

    @router.get("/map")
    def points(model: ModelKey, on: OnMap) -> Response:
        labels = session.plane(*on).labels
        return _packed({"labels": labels}, {"points": session.points(model, *on)})

    @router.get("/colour")
    def colour(model: ModelKey, frame: ModelKey, by: Colour, dimension: Dimension = 0) -> Response:
        made = session.colours(model, frame, by, dimension)
        names = ("label", "low", "high", "diverging")
        return _packed({name: getattr(made, name) for name in names}, {"values": made.values})

    @router.get("/columns")
    def columns(model: ModelKey) -> Response:
        return _packed({}, session.insight(model).table())


def _add_pictures(router: APIRouter, session: Session) -> None:
    @router.get("/memory")
    def memory(model: ModelKey, row: Row) -> dict[str, Any]:
        return describe_memory(session.insight(model), row)

    @router.get("/picture")
    def picture(model: ModelKey, row: Row) -> Response:
        return Response(session.picture_of(model, row), media_type="image/jpeg")

    @router.get("/moment")
    def moment(model: ModelKey, row: Row, number: Row) -> Response:
        return Response(session.moment_of(model, row, number), media_type="image/jpeg")


def _add_episodes(router: APIRouter, session: Session) -> None:
    @router.get("/episode")
    def episode(episode: Name) -> Response:
        found = session.episode(episode)
        _, actions, rewards = found.arrays()
        document = {
            "title": found.title,
            "steps": len(rewards),
            "frames": found.drawn(),
            "no_frames": found.no_frames,
            "ended": found.ended,
            "return": float(rewards.sum()),
            "rows": found.rows,
        }
        return _packed(document, {"actions": actions, "rewards": rewards})

    @router.get("/frame")
    def frame(episode: Name, step: Row) -> Response:
        found = session.episode(episode).frame(step)
        if found is None:
            return Response(status_code=404)
        return Response(found, media_type="image/jpeg")

    @router.get("/trail")
    def trail(episode: Name, model: ModelKey, on: OnMap) -> Response:
        states, _, _ = session.episode(episode).arrays()
        if not len(states):
            return _packed({}, {})
        means, stds = session.insight(model).act(states)
        points = session.plane(*on).points(states)
        placed = {} if points is None else {"points": points}
        return _packed({}, {**placed, "means": means, "stds": stds})

    @router.get("/step")
    def step(episode: Name, step: Row, model: ModelKey, on: OnMap) -> Response:
        insight = session.insight(model)
        state = session.episode(episode).observation(step)
        position = session.plane(*on).points(state[None])
        document, arrays = describe_step(insight, state)
        where = {
            "state": state.tolist(),
            "position": None if position is None else position[0].tolist(),
        }
        return _packed({**document, **where}, arrays)


def _add_actions(router: APIRouter, session: Session) -> None:
    @router.post("/forget")
    def forget(body: ForgetBody) -> dict[str, Any]:
        key = session.forget(body.model, body.rows)
        return {"model": key, **describe(session.insight(key))}

    @router.post("/play")
    def play(body: PlayBody) -> dict[str, str]:
        episode, job = session.play(body.model, body.seed, body.noise)
        return {"episode": episode, "job": job}

    @router.post("/remember")
    def remember(body: RememberBody) -> dict[str, str]:
        return {"episode": session.remember(body.model, body.episode)}

    @router.post("/evaluate")
    def evaluate(body: EvaluateBody) -> dict[str, str]:
        return {"job": session.evaluate(body.model, body.episodes)}

    @router.get("/job")
    def job(job: Name) -> dict[str, Any]:
        return session.jobs.get(job).as_json()

    @router.post("/stop")
    def stop(body: StopBody) -> dict[str, Any]:
        found = session.jobs.get(body.job)
        found.stopping.set()
        return found.as_json()
