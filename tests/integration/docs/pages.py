"""The commands of a page of the documentation."""
import pathlib
import re


def blocks(page, language="sh"):
    """Texts of its fenced blocks in that language."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
