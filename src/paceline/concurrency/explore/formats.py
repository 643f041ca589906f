"""A report as SARIF 2.1.0, and as one HTML page: a lane for each thread, its steps from top to bottom."""

from __future__ import annotations

import linecache
from html import escape
from typing import Any

from paceline.concurrency.check.reporting.formats import flows, location, log
from paceline.concurrency.explore.finding import relative

PAGE = """<!doctype html><html lang=en><meta charset=utf-8><title>paceline explore: {title}</title><style>
body {{ font: 15px/1.4 system-ui, sans-serif; margin: 2em; color-scheme: light dark }}
.lanes {{ display: grid; gap: 2px 12px; grid-auto-columns: minmax(14em, 1fr); overflow-x: auto }}
.lanes b {{ grid-row: 1; border-bottom: 2px solid }} .lanes div {{ border-left: 3px solid #68a; padding: 2px 8px }}
.lanes .switch {{ border-bottom: 2px dashed #c60 }} .lanes .end {{ border-color: #c22; background: #c222 }}
code {{ display: block; opacity: .75; white-space: pre-wrap }}
</style><h1>{title}</h1>{blocks}<p>{verdict}, {schedules:,} schedules in {seconds:.1f} s</p></html>
"""


def html(report: dict[str, Any]) -> str:
    blocks = "".join(_block(each, report["command"]) for each in report["findings"])
    return PAGE.format(**{**report, "title": escape(report["target"]), "blocks": blocks})


def _block(found: dict[str, Any], command: str) -> str:
    finding = found["finding"]
    scenes = [*finding["schedule"], *finding["story"]]
    lanes = list(dict.fromkeys(each["who"] for each in scenes))
    heads = [f"<b style='grid-column:{at}'>{escape(who)}</b>" for at, who in enumerate(lanes, 1)]
    cells = []
    for at, each in enumerate(scenes, 1):
        style = "switch" if each["what"].startswith("is interrupted") else "runs"
        style = "end" if at > len(finding["schedule"]) else style
        place = f"grid-column:{lanes.index(each['who']) + 1};grid-row:{at + 1}"
        cells.append(f"<div class='{style}' style='{place}'>{escape(each['what'])}{_source(each)}</div>")
    title = f"{finding['kind']}: {finding['message']}"
    replay = f"<code>paceline explore --replay {found['replay']} {escape(command)}</code>"
    conclusion = f"<p>{escape(finding['conclusion'])}</p>"
    return f"<h2>{escape(title)}</h2><section class=lanes>{''.join(heads + cells)}</section>{conclusion}{replay}"


def _source(scene: dict[str, Any]) -> str:
    if not scene["line"]:
        return ""
    text = linecache.getline(scene["file"], scene["line"]).strip()
    return f"<code>{escape(relative(scene['file']))}:{scene['line']} {escape(text)}</code>"


def sarif(report: dict[str, Any]) -> str:
    """Return a log with one run."""
    kinds = sorted({each["finding"]["kind"] for each in report["findings"]})
    rules = [{"id": f"explore/{kind.replace(' ', '-')}", "shortDescription": {"text": kind}} for kind in kinds]
    return log(rules, [_result(each, report["command"]) for each in report["findings"]], {"executionSuccessful": True})


def _result(found: dict[str, Any], command: str) -> dict[str, Any]:
    finding = found["finding"]
    scenes = [each for each in (*finding["schedule"], *finding["story"]) if each["line"]]
    steps = [(each["who"], relative(each["file"]), each["line"], each["what"]) for each in scenes]
    place = location(relative(finding["file"] or command), finding["line"] or 1, 1)
    return {
        "ruleId": f"explore/{finding['kind'].replace(' ', '-')}",
        "level": "error",
        "message": {"text": f"{finding['message']}\n{finding['conclusion']}"},
        "locations": [place],
        "codeFlows": [{"threadFlows": flows(steps)}] if steps else [],
        "properties": {"replay": f"paceline explore --replay {found['replay']} {command}"},
    }
