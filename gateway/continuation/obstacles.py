"""Why a stream cannot be gone on with elsewhere: one word for the log, one clause for the client.

Who finds an obstacle, in the request or in the stream, is not known here.
"""

from enum import Enum


class Obstacle(Enum):
    """What stands in the way of an exact continuation; the value completes an error's message."""

    ROUTE = "streams of this route cannot be resumed"
    ENGINE = "its engine does not tell token ids"
    DECLINED = "the request declines token ids"
    SEVERAL = "it asked for more than one answer"
    FORMAT = "its output format is constrained"
    TOOLS = "it may call tools"
    LOGPROBS = "it asked for log probabilities"
    PENALTY = "presence and frequency penalties count the output so far"
    SEED = "a seed would begin anew on another replica"
    STOP = "a stop string may lie across the break"
    HISTORY = "its sampling depends on the output so far"
    BEAMS = "it is a beam search"
    ECHO = "it repeats its prompt"
    PROMPT = "its prompt holds more than text"
    REASONING = "the reasoning in it cannot be told from the answer on another replica"
    TOOL_CALL = "it was calling a tool"
    PARSED = "its engine holds text back"
    NO_IDS = "its engine did not tell all token ids"
    TOO_LONG = "it is too long to be remembered"
    SHOWN = "the client was shown token ids whose text was still to come"
    CUT = "no place was found where its text can be joined"
    NO_REPLICA = "none could take it in time"
    ATTEMPTS = "its attempts are used up"
    CONTEXT = "nothing tells how long it may become"
