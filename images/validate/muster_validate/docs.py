"""Makes Data Docs a page that needs no other host, and begins with what did not hold."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

_ALONE = (
    (re.compile(r"<script\b.*?</script\s*>", re.DOTALL | re.IGNORECASE), ""),
    (re.compile(r"<(?:link|img)\b[^>]*>", re.IGNORECASE), ""),
    (re.compile(r"url\(\s*['\"]?(?:https?:)?//[^)]*\)", re.IGNORECASE), "none"),
    (
        re.compile(r"<a\b[^>]*\bdata-toggle\s*=[^>]*>.*?</a\s*>", re.DOTALL | re.IGNORECASE),
        "",
    ),  # needs a script
    (re.compile(r"<a\b[^>]*\bhref\s*=\s*(?!['\"]?#)[^>]*>(.*?)</a\s*>", re.DOTALL | re.IGNORECASE), r"\1"),
    (re.compile(r"<p>\s*Stay current on.*?</p>", re.DOTALL), ""),
)
_STYLE = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 1.5rem auto; max-width: 100rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: .5rem 0 1.5rem; }
td, th { border-bottom: 1px solid #8884; padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
td:first-child { min-width: 4.5rem; }
.table-responsive, .show-scrollbars { overflow-x: auto; }
.badge { border-radius: .2rem; background: #8883; padding: 0 .3rem; }
.text-success { color: light-dark(#1a7f37, #4ac26b); } .text-danger { color: light-dark(#cf222e, #ff7b72); }
.fa-check-circle::before { content: "\\2713 "; } .fa-times::before { content: "\\2717 "; }
.fa-exclamation-triangle::before { content: "! "; }
i { font-style: normal; font-weight: 600; } h5 { font-size: 1.1rem; margin: 1rem 0 .3rem; }
nav, footer, .navbar, .sticky, .collapse { display: none; }
@media (prefers-color-scheme: dark) { .table { background: none !important; } }
</style>
</head>"""


def offline(page: str) -> str:
    """Remove from a Data Docs page what needs other hosts, pages or scripts, and add a plain style."""
    for pattern, kept in _ALONE:
        page = pattern.sub(kept, page)
    return page.replace("</head>", _STYLE, 1)


def failed_first(page: str, document: Mapping[str, Any]) -> str:
    """Put what did not hold first, before it what could not be evaluated: its number, its names and the values found."""
    results = document["results"]
    failed = sorted(
        (each for each in results if not each["success"]),
        key=lambda each: not each["exception_info"]["raised_exception"],
    )
    if failed:
        head = f"{len(failed)} of {len(results)} expectations failed"
    else:
        head = f"all {len(results)} expectations hold"
    rows = "".join(
        f'<tr><td class="text-danger"><i class="fas fa-times"></i>{html.escape(_status(each))}</td>'
        f"<td>{html.escape(each['expectation_config']['type'])}<br>{html.escape(kwargs_text(each))}</td>"
        f"<td>{html.escape(_found(each))}</td></tr>"
        for each in failed
    )
    table = (
        f"<table><tr><th>Status</th><th>Expectation</th><th>Found</th></tr>{rows}</table>" if failed else ""
    )
    return re.sub(r"<body[^>]*>", lambda match: f"{match[0]}<h1>{head}</h1>{table}", page, count=1)


def _status(entry: Mapping[str, Any]) -> str:
    said = "Not evaluated" if entry["exception_info"]["raised_exception"] else "Failed"
    severity = entry["expectation_config"].get("severity") or "critical"
    return said if severity == "critical" else f"{said} ({severity})"


def kwargs_text(entry: Mapping[str, Any]) -> str:
    """Return the keywords of a result's expectation."""
    kwargs = entry["expectation_config"]["kwargs"]
    return ", ".join(f"{name}={value!r:.60}" for name, value in kwargs.items() if name != "batch_id")


def _found(entry: Mapping[str, Any]) -> str:
    result = entry["result"]
    if entry["exception_info"]["raised_exception"]:
        return str(entry["exception_info"]["exception_message"])
    if "unexpected_count" in result:
        some = ", ".join(
            dict.fromkeys(f"{value!r:.40}" for value in result.get("partial_unexpected_list", []))
        )
        share = f"{result['unexpected_count']:,} of {result.get('element_count', 0):,} values"
        return f"{share} unexpected" + (f", such as {some:.200}" if some else "")
    return f"{result['observed_value']!r:.200}" if "observed_value" in result else ""
