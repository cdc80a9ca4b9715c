"""The check of the words: finds phrases and layouts that readers stumble over, in Markdown, comments and strings."""

import re
from pathlib import Path

COLUMNS_MAX = 100
PARAGRAPH_LINES_MAX = 5

# These two have to spell out what they find.
EXEMPT = ("tests/tidy/prose.py", "tests/tidy/self_test.py", "LICENSE")

C_SUFFIXES = (".cpp", ".hpp", ".h", ".c", ".proto")
HASH_SUFFIXES = (".py", ".sh", ".cmake", ".textproto", ".conf", ".service", ".yml")

# A sentence begins where the passage does, after the end of another one, and after a tag such as @return.
START = r"(?:^|(?<=[.!?] )|(?<=@return )|(?<=@retval ))"

# (pattern, what is wrong with it). Matched against a passage in one line, without code in backquotes.
PATTERNS = [(re.compile(pattern), reason) for pattern, reason in (
    (START + r"Of\b(?! course)", 'begins with "of"; name the subject first'),
    (START + r"What of\b", '"what of"; name the subject first'),
    (START + r"Who(?:se)?\b", 'begins with "who"; name the subject: a caller, a session, a client'),
    (START + r"What (?:is|are|was|were|has|had|comes?|stands?|waits?|lies?|goes|ends?|lives?|must|can|cannot|may|does)\b",
     "a relative clause as the subject; name the thing"),
    (START + r"Whatever (?:is|are|was|has|comes?|stands?|waits?|can|must|a|an|the)\b",
     "a relative clause as the subject; name the thing"),
    (START + r"(?:Has|Have|Lets|Let) [^.]{1,60} (?:be|come|go|wait|end)\b(?! to)(?! of)", '"has X do"; use "makes X do"'),
    (r"\b[Ww]ho(?:m)?ever\b", '"whoever"; name the subject: a caller, a session, a client'),
    (r"\b(?:[Nn]obody|[Nn]o one)'s(?!\w)", '"nobody\'s"; say who owns it, or that it has no owner'),
    (r"\b(?:is|are|was|were|be|been|being) told\b", '"is told"; use "reports", "returns", "prints"'),
    (r"\btells? of\b", '"tells of"; use "reports"'),
    (r"\bso much as\b", '"so much as"; use "even"'),
    (r"\bto be had\b", '"to be had"; use "available"'),
    (r"\bstands? back\b", '"stands back"; use "waits"'),
    (r"\bfor want of\b", '"for want of"; use "because there is no"'),
    (r"\bfor ever\b", '"for ever"; write "forever"'),
    (r"\bbut for\b", '"but for"; use "except"'),
    (r"\bof ours\b", '"of ours"; use "our"'),
    (r"\bsees to\b", '"sees to"; use "ensures"'),
    (r"(?<![Tt]here )(?<![Tt]here's )\b(?:is|are) no (?!longer|more|less|fewer|larger|smaller|later|earlier|slower|faster)[a-z]",
     '"is no X"; use "is not a X"'),
    (r"\blikewise\b[^.]*\blikewise\b", 'a chain of "likewise"'),
    (r"\b(?:is|are|was) (?:the )?[\w()]+(?:'s|s') to (?!be\b)[a-z]+\b", '"is X\'s to do"; use "X must" or "X may"'),
    (r"\b(?:[Kk]nock(?:s|ed|ing|er|ers)?|[Ll]eavings|[Hh]oard(?:s|ed|ing)?|[Ss]couts?)\b",
     "an invented term; use the field's own"),
    (r"\bDoors?\b|\b(?:the|a|each|its|one|own) doors?\b", "an invented term; use the field's own"),
    (r"\b(?:a|the|each|its|one|every|no) settles?\b", "an invented term; use the field's own"),
)]
# Not for strings: their pieces begin in the middle of a sentence.
COMMENT_PATTERNS = [(re.compile(pattern), reason) for pattern, reason in (
    (r"^of\b(?! course)", 'begins with "of"; name the subject first'),
    (r"^what of\b", '"what of"; name the subject first'),
    (r"^who(?:se)?\b", 'begins with "who"; name the subject: a caller, a session, a client'),
)]


def passages(path, text):
    """(line number, whether it is a string, text in one line) of each comment, string, paragraph and table cell."""
    if path.endswith(".md"):
        yield from markdown_passages(text)
    elif path.endswith(C_SUFFIXES):
        yield from code_passages(text, r"//[/!]?<?|/\*+", r'R"(?P<mark>\w*)\((?:.|\n)*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"')
    elif path.endswith(HASH_SUFFIXES) or Path(path).name == "CMakeLists.txt" or text.startswith("#!"):
        yield from code_passages(text, r"#+(?!!)", r'"""(?:.|\n)*?"""|<<\'?(?P<mark>\w+)\'?\n(?:.|\n)*?\n(?P=mark)\n|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'')


def blocks_of_markdown(text):
    """(line number, its lines, kind) of each paragraph, list item, row and heading; fenced code is left out."""
    block, start, fenced = [], 0, False
    for number, line in enumerate(text.splitlines() + [""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            new, line = True, ""
        elif fenced:
            continue
        new = not line.strip() or re.match(r"\s*(?:[*+-]|\d+\.) |\||#", line)
        if new and block:
            yield start, block
            block = []
        if line.strip():
            if not block:
                start = number
            block.append(line)


def markdown_passages(text):
    for number, block in blocks_of_markdown(text):
        if block[0].startswith("|"):
            for cell in block[0].strip("|").split("|"):
                yield number, False, cell.strip()
        else:
            yield number, False, re.sub(r"^\s*(?:[*+-]|\d+\.|#+) ", "", " ".join(line.strip() for line in block))


def code_passages(text, comment, string):
    """Comments on lines that follow each other are one passage, and so are strings with nothing but space between."""
    token = re.compile(rf"(?P<comment>{comment})(?P<words>[^\n]*)|(?P<string>{string})")
    open_comment, column = None, 0  # [first line, last line, words]
    for match in token.finditer(text):
        number = text.count("\n", 0, match.start()) + 1
        begin = match.start() - (text.rfind("\n", 0, match.start()) + 1)
        if match["comment"]:
            words = match["words"].strip()
            follows = open_comment and open_comment[1] == number - 1 and begin == column
            if follows and words and not words.startswith("@"):
                open_comment[1] = number
                open_comment[2].append(words)
                continue
            if open_comment:
                yield open_comment[0], False, " ".join(open_comment[2])
            open_comment, column = [number, number, [words]], begin
        elif len(match["string"].split()) > 2:
            yield number, True, " ".join(match["string"].strip("\"'").replace("\\n", " ").split())
    if open_comment:
        yield open_comment[0], False, " ".join(open_comment[2])


def layout_findings(path, text):
    for number, block in blocks_of_markdown(text):
        if block[0].startswith(("|", "#")):
            continue
        for offset, line in enumerate(block):
            if len(line) > COLUMNS_MAX and "](" not in line and "://" not in line:
                yield f"{path}:{number + offset}: {len(line)} columns of prose; {COLUMNS_MAX} is the limit"
        if len(block) > PARAGRAPH_LINES_MAX:
            yield f"{path}:{number}: a paragraph of {len(block)} lines; {PARAGRAPH_LINES_MAX} is the limit"


def check_prose(tree):
    for path, text in sorted(tree.files.items()):
        if path in EXEMPT or "/corpus/" in path:
            continue
        if path.endswith(".md"):
            yield from layout_findings(path, text)
        for number, is_string, passage in passages(path, text):
            plain = re.sub(r"`[^`]*`", "`code`", passage)
            for pattern, reason in PATTERNS + ([] if is_string else COMMENT_PATTERNS):
                match = pattern.search(plain)
                if match:
                    yield f'{path}:{number}: "{plain[match.start():match.end() + 30].strip()}": {reason}'
