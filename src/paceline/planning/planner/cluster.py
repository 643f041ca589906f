"""cluster.toml: the machines that a plan may use, the links between them, their prices and how often they fail.

[[nodes]]
count = 8
card = "card.json"        # of `paceline calibrate` on such a machine; or two figures of its data sheet:
# gflops = 80; gigabytes = 12; cores = 8; memory = "32 GiB"
price = 0.17              # dollars an hour; or: sku = "c5.xlarge", looked up in the table of prices
slowness = 1.0            # how many times as long as its card says

[links]
latency = 5e-5            # seconds between two nodes of a rack
bandwidth = 1.25e9        # bytes per second
rack = 4                  # nodes of a rack; 0: all are in one
far_latency = 2e-4
uplink = 2.5e9

[failures]
mtbf = 864000             # seconds between two failures of a node, on average
repair = 300
straggle = [0.01, 5.0]    # one computation in a hundred takes five times as long
speeds = ["lognormal", 0.1]
"""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paceline.errors import UsageError, suggest
from paceline.planning.planner.card import Card, ExchangeSeconds, of_data_sheet
from paceline.runtime.engines.virtual import World
from paceline.runtime.engines.virtual.world import SPREADS

COPIES = 2  # servers of a shard, by default
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@dataclass(frozen=True)
class NodeGroup:
    """Machines of one kind."""

    card: Card
    count: int = 1
    #: Dollars an hour of one; None where it is not known.
    price: float | None = None
    #: Where the price comes from.
    source: str = ""


@dataclass(frozen=True)
class Links:
    """The network between nodes."""

    latency: float = 5e-5
    bandwidth: float = 1.25e9
    rack: int = 0
    far_latency: float = 2e-4
    uplink: float = 1.25e9


@dataclass(frozen=True)
class Failures:
    """What goes wrong with nodes."""

    mtbf: float = math.inf
    repair: float = 300.0
    straggle: tuple[float, float] = (0.0, 1.0)
    speeds: tuple[str, float] = ("lognormal", 0.0)


@dataclass(frozen=True)
class Cluster:
    """Machines and the network between them."""

    nodes: tuple[NodeGroup, ...]
    links: Links = field(default_factory=Links)
    failures: Failures = field(default_factory=Failures)

    @property
    def machines(self) -> int:
        return sum(node.count for node in self.nodes)

    @property
    def slowest(self) -> Card:
        """The card of the slowest kind of node, for which synchronous plans wait."""
        return max((node.card for node in self.nodes), key=lambda card: card.slowness)

    def card(self) -> Card:
        """One card for workers on different nodes: the slowest node's operations, the network's exchanges."""
        card, links = self.slowest, self.links
        far = bool(links.rack) and self.machines > links.rack
        latency = max(links.latency, links.far_latency) if far else links.latency
        bandwidth = min(links.bandwidth, links.uplink) if far else links.bandwidth
        between = max((each.between for each in card.exchanges), default=card.between)
        kinds = tuple(
            ExchangeSeconds(kind, workers, latency, bandwidth, 0.3, between)
            for kind in ("meeting", "push", "ddp", "message")
            for workers in (2, self.machines)
        )
        alone = tuple(o for o in card.operations if o.busy * o.threads <= 1) or card.operations[:1]
        busy = tuple(replace(alone[0], busy=count) for count in (1, self.machines))
        total = sum(node.card.memory * node.count for node in self.nodes)
        return replace(card, cores=self.machines, memory=total, operations=busy, exchanges=kinds)

    def price(self, workers: int) -> float | None:
        """Return the dollars of a second of so many nodes, the cheapest first; None where a price is not known."""
        remaining, dollars = workers, 0.0
        for node in sorted(self.nodes, key=lambda n: n.price or 0.0):
            if node.price is None:
                return None
            take = min(remaining, node.count)
            dollars, remaining = dollars + take * node.price / 3600, remaining - take
        return dollars

    def world(self, workers: int, compute: float, update: float, seconds: float, seed: int = 0) -> World:
        """Return a simulated world of so many workers, one on each node."""
        links, failures = self.links, self.failures
        world = World(
            compute=compute,
            update=update,
            latency=links.latency,
            bandwidth=links.bandwidth,
            rack=links.rack,
            far_latency=links.far_latency,
            uplink=links.uplink,
            straggle=failures.straggle,
            seed=seed,
            copies=0 if links.rack else COPIES,
        )
        if len(self.nodes) > 1:
            fast = min(node.card.slowness for node in self.nodes)
            speeds = [fast / node.card.slowness for node in self.nodes for _ in range(node.count)]
            world = replace(world, speeds=tuple(speeds[:workers]))
        elif failures.speeds[1] > 0:
            world = world.with_speeds(workers, *failures.speeds)
        if math.isfinite(failures.mtbf):
            world = world.with_failures(workers, failures.mtbf, failures.repair, seconds)
        return world


RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


def links_of(text: str) -> Links:
    """Return the network that a text such as `100Mbit,1ms` describes: bits per second, and seconds of one way."""
    match = re.fullmatch(r"([\d.]+)\s*([kmg]bit)\s*,\s*([\d.]+)\s*(us|ms|s)", text.strip().lower())
    try:
        rate, latency = float(match[1]) * RATES[match[2]], float(match[3]) * TIMES[match[4]]  # type: ignore[index]
    except (TypeError, ValueError):
        raise UsageError(f"link {text!r}: give rate and latency, as in 100Mbit,1ms or 1Gbit,0.2ms") from None
    if rate <= 0:
        raise UsageError(f"link {text!r}: its rate has to be above 0")
    return Links(latency, rate / 8, far_latency=latency, uplink=rate / 8)


def read(file: Path, table: Mapping[str, Price] | None = None) -> Cluster:
    """Read a cluster file. UsageError with the nearest right thing for what is wrong in it."""
    try:
        import tomllib
    except ModuleNotFoundError:
        raise UsageError("cluster files need Python 3.11 or later") from None
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the cluster file {file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the cluster file {file} is not TOML: {error}") from None
    _known(document, ("nodes", "links", "failures"), f"{file}")
    rows = document.get("nodes", [])
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{file} has no nodes; add a table [[nodes]] with card= or gflops= and gigabytes=")
    nodes = tuple(_node(row, file, number, table or TABLE) for number, row in enumerate(rows))
    links = _numbers(Links, document.get("links", {}), f"{file}, [links]", positive=("bandwidth", "uplink"))
    failures = _failures(document.get("failures", {}), f"{file}, [failures]")
    return Cluster(nodes, links, failures)


def _known(mapping: Mapping[str, Any], allowed: tuple[str, ...], where: str) -> None:
    for name in mapping:
        if name not in allowed:
            raise UsageError(f"{where}: unknown key {name!r}; {suggest(name, allowed)}")


def _number(value: object, name: str, where: str, positive: bool = False) -> float:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not fits or value < 0 or (positive and value == 0):  # type: ignore[operator]
        raise UsageError(f"{where}: {name}={value!r}; give a number {'above' if positive else 'of at least'} 0")
    return float(value)  # type: ignore[arg-type]


def _numbers(kind: Any, mapping: Mapping[str, Any], where: str, positive: tuple[str, ...] = ()) -> Any:
    fields = tuple(each.name for each in dataclasses.fields(kind))
    _known(mapping, fields, where)
    values = {name: _number(value, name, where, name in positive) for name, value in mapping.items()}
    return kind(**{name: int(value) if name == "rack" else value for name, value in values.items()})


def _failures(mapping: Mapping[str, Any], where: str) -> Failures:
    _known(mapping, tuple(each.name for each in dataclasses.fields(Failures)), where)
    failures = Failures(
        mtbf=_number(mapping["mtbf"], "mtbf", where, positive=True) if "mtbf" in mapping else math.inf,
        repair=_number(mapping.get("repair", 300.0), "repair", where),
    )
    for name, example in (("straggle", "[0.01, 5.0]"), ("speeds", '["lognormal", 0.1]')):
        value = mapping.get(name)
        if value is not None and (not isinstance(value, list) or len(value) != 2):
            raise UsageError(f"{where}: {name}={value!r}; give two values, as in {example}")
    if "straggle" in mapping:
        chance, factor = (_number(value, "straggle", where) for value in mapping["straggle"])
        if chance > 1:
            raise UsageError(f"{where}: straggle={mapping['straggle']}; the first is a probability, from 0 to 1")
        failures = replace(failures, straggle=(chance, factor))
    if "speeds" in mapping:
        spread, width = mapping["speeds"]
        if spread not in SPREADS:
            raise UsageError(f"{where}: speeds={spread!r}; {suggest(str(spread), SPREADS)}")
        failures = replace(failures, speeds=(spread, _number(width, "speeds", where)))
    return failures


def _node(row: Mapping[str, Any], file: Path, number: int, table: Mapping[str, Price]) -> NodeGroup:
    where = f"{file}, nodes {number}"
    _known(row, ("count", "card", "gflops", "gigabytes", "cores", "memory", "price", "sku", "slowness", "name"), where)
    count = row.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise UsageError(f"{where}: count={count!r}; give a whole number of at least 1")
    if "card" in row:
        card = Card.read(file.parent / row["card"])
    elif "gflops" in row and "gigabytes" in row:
        gflops, gigabytes = (_number(row[name], name, where, positive=True) for name in ("gflops", "gigabytes"))
        cores = max(1, int(_number(row.get("cores", 1), "cores", where, positive=True)))
        card = of_data_sheet(gflops, gigabytes, cores, _bytes(row.get("memory", "16 GiB"), where))
    else:
        raise UsageError(f"{where}: give card=, a file of `paceline calibrate`, or gflops= and gigabytes=")
    card = replace(card, slowness=card.slowness * _number(row.get("slowness", 1.0), "slowness", where, positive=True))
    if "sku" in row:
        quote = price_of(str(row["sku"]), table)
        return NodeGroup(card, count, quote.dollars, quote.source)
    price = _number(row["price"], "price", where) if "price" in row else None
    return NodeGroup(card, count, price, str(file) if price is not None else "")


def _bytes(value: object, where: str) -> int:
    number, _, unit = str(value).partition(" ")
    if isinstance(value, int) and value > 0:
        return value
    try:
        return round(float(number) * UNITS[unit])
    except (ValueError, KeyError):
        raise UsageError(f"{where}: memory={value!r}; give bytes, or a size as in '32 GiB'") from None


# --- Prices of machines, with their dates and sources -----------------------------------------------------------------
# Prices change: each has a date, and a run keeps the one that was used. `--prices FILE` reads a table of your own, in
# the columns of the common open catalogue: InstanceType, vCPUs, MemoryGiB, AcceleratorName, Price, Region.


@dataclass(frozen=True)
class Price:
    """The price of one machine."""

    sku: str
    #: An hour.
    dollars: float
    cores: int
    memory_gib: float
    region: str
    source: str


DATE = "2024-01"
SOURCE = f"on-demand price of about {DATE}, written down from memory and not checked against a catalogue"
#: A few machines that are often rented, without discounts and traffic. The figures are examples.
TABLE: Mapping[str, Price] = {
    row[0]: Price(row[0], row[1], row[2], row[3], row[4], SOURCE)
    for row in (
        ("c5.large", 0.085, 2, 4, "us-east-1"),
        ("c5.xlarge", 0.17, 4, 8, "us-east-1"),
        ("c5.2xlarge", 0.34, 8, 16, "us-east-1"),
        ("c5.4xlarge", 0.68, 16, 32, "us-east-1"),
        ("m5.xlarge", 0.192, 4, 16, "us-east-1"),
        ("m5.4xlarge", 0.768, 16, 64, "us-east-1"),
        ("p3.2xlarge", 3.06, 8, 61, "us-east-1"),
        ("p3.16xlarge", 24.48, 64, 488, "us-east-1"),
        ("n1-standard-4", 0.19, 4, 15, "us-central1"),
        ("n1-standard-16", 0.76, 16, 60, "us-central1"),
    )
}
COLUMNS = ("InstanceType", "vCPUs", "MemoryGiB", "Price", "Region")


def price_of(sku: str, table: Mapping[str, Price]) -> Price:
    """Look a machine up. UsageError with the nearest name if there is none."""
    if sku not in table:
        raise UsageError(f"there is no price of {sku!r}; {suggest(sku, table)}; or give price= in dollars an hour")
    return table[sku]


def read_prices(file: Path) -> dict[str, Price]:
    """Read a table of prices; of several regions, the cheapest counts."""
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prices {file} cannot be read: {error}") from None
    missing = [name for name in COLUMNS if not rows or name not in rows[0]]
    if missing:
        raise UsageError(f"the prices {file} lack the columns {', '.join(missing)}; they need {', '.join(COLUMNS)}")
    prices: dict[str, Price] = {}
    for number, row in enumerate(rows, 2):
        try:
            dollars = float(row["Price"] or "nan")
            one = Price(
                row["InstanceType"],
                dollars,
                int(float(row["vCPUs"] or 0)),
                float(row["MemoryGiB"] or 0),
                row["Region"],
                str(file),
            )
        except ValueError as error:
            raise UsageError(f"the prices {file}, line {number}: {error}") from None
        if math.isfinite(dollars) and (one.sku not in prices or dollars < prices[one.sku].dollars):
            prices[one.sku] = one
    return prices
