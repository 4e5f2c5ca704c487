"""A run as JUnit XML: one test case for each cell, for CI services that show such files."""

from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree as ET

from faultline.base.text import plain
from faultline.runs.results import Result, as_expected, expectation


def write(file: Path, results: Collection[Result]) -> None:
    """Write the file; a cell that didn't do what was expected is a failure, an impossible one is skipped."""
    unexpected = sum(not as_expected(result) for result in results)
    suite = ET.Element(
        "testsuite",
        name="faultline",
        tests=str(len(results)),
        failures=str(unexpected),
        errors="0",
        skipped=str(sum(_skipped(result) for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in sorted(results, key=lambda result: result.cell.id):
        suite.append(_case(result))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    ET.ElementTree(root).write(file, encoding="utf-8", xml_declaration=True)


def _skipped(result: Result) -> bool:
    return as_expected(result) and result.outcome == "impossible"


def _case(result: Result) -> ET.Element:
    cell = result.cell
    case = ET.Element("testcase", classname=plain(cell.failure), name=plain(cell.name), time=f"{result.seconds:.3f}")
    properties = ET.SubElement(case, "properties")
    facts = {"outcome": result.outcome, "signature": result.signature, "verdict": result.verdict}
    if result.expected.basis:  # which says that nobody had measured it
        facts["basis"] = result.expected.basis
    for name, value in facts.items():
        ET.SubElement(properties, "property", name=name, value=plain(value))
    if _skipped(result):
        ET.SubElement(case, "skipped", message=plain(result.detail))
    elif not as_expected(result):
        element = ET.SubElement(case, "failure", type=plain(result.verdict), message=expectation(result))
        element.text = plain("\n\n".join(_texts(result)))
    return case


def _texts(result: Result) -> list[str]:
    """The detail, then what each rank left behind."""
    texts = [result.detail]
    for rank in result.ranks:
        traceback = rank.error.traceback if rank.error else ""
        texts += [f"rank {rank.rank}:\n{text}" for text in (traceback, rank.stack, rank.log) if text]
    return texts
