"""Whole cases that a backend supports. Nothing is filtered: what is drawn is legal by the way it is built."""

from enum import Enum, auto
from functools import cache
from operator import itemgetter

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from msgspec.structs import replace

from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Step
from attnfuzz.strategies.batch import Setting
from attnfuzz.strategies.choices import choice, integer, odds
from attnfuzz.strategies.chunks import draw_chunk_capacity
from attnfuzz.strategies.geometry import Geometries
from attnfuzz.strategies.graphs import capturable, draw_launches
from attnfuzz.strategies.numbers import draw_family, draw_scales
from attnfuzz.strategies.padding import draw_attention_group, draw_padding
from attnfuzz.strategies.placement import draw_placement
from attnfuzz.strategies.relations import draw_relation
from attnfuzz.strategies.scope import Extent, scope_of
from attnfuzz.strategies.sequences import draw_life, draw_single_step, draw_unrelated_steps


class _Plot(Enum):
    """What the steps of a case are to each other. In REPLAYS, several of them are meant to share a graph."""

    SINGLE = auto()
    UNRELATED = auto()
    LIFE = auto()
    REPLAYS = auto()


_PLOTS = choice((*(_Plot.SINGLE,) * 6, *(_Plot.UNRELATED,) * 4, *(_Plot.LIFE,) * 3, *(_Plot.REPLAYS,) * 5))
_EXTENTS = choice((*(Extent.FEW,) * 15, *(Extent.LONG,) * 2, *(Extent.WIDE,) * 4))
# Draft tokens of the speculative modes: 2 to 8 in servers, rarely 16.
_STRIDES = choice((2, 3, 4, 5, 6, 7, 8) * 4 + (16,))
_IN_GRAPHS = odds(2, 3)
# Whether the rank belongs to a group that agrees on a size.
_IN_GROUPS = odds(1, 2)
_SEEDS = integer(0, (1 << 32) - 1)


@cache
def cases(capability: Capability, backend: str) -> SearchStrategy[Case]:
    """Cases for the backend of that name, all of them valid and covered by `capability`."""
    # Hypothesis follows up each example with several in which one part is copied over another. That makes three cases
    # out of four near copies of the fourth. It leaves out what is drawn inside of a unique collection.
    alone = st.lists(_cases(capability, backend, Geometries(capability)), min_size=1, max_size=1, unique_by=id)
    return alone.map(itemgetter(0))


@st.composite
def _cases(draw: DrawFn, can: Capability, backend: str, geometries: Geometries) -> Case:
    geometry = geometries.draw(draw)
    scope = scope_of(draw(_EXTENTS), geometry)
    steps = _draw_steps(draw, Setting(can, geometry.page_size, scope, stride=draw(_STRIDES)))
    case = Case(
        backend=backend,
        geometry=geometry,
        steps=steps,
        **draw_placement(draw, can, geometry),
        values=draw_family(draw),
        scales=draw_scales(draw, can),
        chunk_capacity=draw_chunk_capacity(draw, steps),
        seed=draw(_SEEDS),
    )
    relation = draw_relation(draw, case, can)
    return replace(case, relation=relation) if relation else case


def _draw_steps(draw: DrawFn, setting: Setting) -> tuple[Step, ...]:
    """Plan the steps, then launch some of them as graphs, then pad the eager ones: the order in which servers do it."""
    graph_modes = capturable(setting.can)
    plot = draw(_PLOTS)
    if plot is _Plot.SINGLE:
        steps = draw_single_step(draw, setting)
    elif plot is _Plot.LIFE:
        steps = draw_life(draw, setting)
    else:
        modes = graph_modes if plot is _Plot.REPLAYS and graph_modes else setting.can.modes
        steps = draw_unrelated_steps(draw, setting, modes)
    if any(step.mode in graph_modes for step in steps) and (plot is _Plot.REPLAYS or draw(_IN_GRAPHS)):
        steps = draw_launches(draw, steps, graph_modes, setting.scope)
    if not setting.can.padding or not draw(_IN_GROUPS):
        return steps
    group = draw_attention_group(draw, setting.scope)
    return tuple(
        draw_padding(draw, step, group, setting.scope) if step.launch is Launch.EAGER else step for step in steps
    )
