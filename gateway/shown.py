"""What others wrote, made fit for a terminal: names of users and answers of engines are theirs.

An escape sequence in a user's name would else move an operator's cursor, or worse; what the text
means is not known here.
"""

REPLACED = "?"


def shown(text: str) -> str:
    """`text` with nothing in it that a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else REPLACED for each in text)
