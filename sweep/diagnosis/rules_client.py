"""The load client and what it reads: prompts, tokenizer, answers of the server.

Sentences of `vllm/benchmarks/` (and of `benchmark_serving.py` before it), aiohttp, transformers, tokenizers and the
OpenAI-style errors of the server.
"""

from __future__ import annotations

import re

from sweep.diagnosis.rule import CLIENT_SIDE, UNDER_LOAD, Kind, Rule, Tier, sentence
from sweep.diagnosis.values import FailureClass as Class
from sweep.diagnosis.values import Phase

_CLIENT = UNDER_LOAD | CLIENT_SIDE
_DATASET_ADVICE = "The prompt file cannot be used: check it (a JSON list of conversations, UTF-8, complete)."
_TOKENIZER_ADVICE = "The tokenizer cannot be loaded or used: give its path or id explicitly, and its chat template."
_CONNECTION_ADVICE = "The client lost the server, and no log says why. Tried again."
_HUB_NAME = (
    r".{0,200}is not a local folder and is not a valid model identifier",
    r"(?:401|403|404) Client Error\b",
    r"You are trying to access a gated repo",
    r"Repo id must be in the form",
    r"Repository Not Found",
    r"(?:[\w.]+\.)?(?:RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError)",
)

RULES = (
    # prompts
    Rule(
        sentence(
            r"Unknown dataset: ",
            r"You need to specify either `text` or `text_target`",
            r"No requests provided",
            r"dataset_path must be provided",
            r"JSONL file must contain",
            r"Dataset must be loaded before sampling",
            r"KeyError: '(?:conversations|value|from|messages)'",
        ),
        Class.DATASET_MALFORMED,
        _DATASET_ADVICE,
        phases=_CLIENT,
    ),
    Rule(
        sentence(
            r"(?:[\w.]+\.)?JSONDecodeError: ",
            r"(?:[\w.]+\.)?Unicode(?:Decode)?Error: ",
            r"FileNotFoundError: ",
            r"(?:[\w.]+\.)?(?:Index|Key|Type|Attribute)Error: ",
        ),
        Class.DATASET_MALFORMED,
        _DATASET_ADVICE,
        phases=frozenset({Phase.DATASET}),
    ),
    # tokenizer
    Rule(
        sentence(
            r"Tokenizer class \S+ does not exist",
            r"data did not match any variant of untagged enum",
            r"Can't load tokenizer for",
            r"Unable to load vocabulary",
            r"Couldn't instantiate the backend tokenizer",
            r"Failed to load the tokenizer",
            r"Unrecognized (?:processing class|tokenizer)",
            r"Can(?:not|'t) (?:use|load|find) .{0,40}(?:chat[_ ]template|tokenizer|apply_chat_template)",
            r".{0,60}default chat template is no longer allowed",
            r".{0,80}(?:tokenizer\.chat_template is not set|must provide a chat template)",
            r".{0,80}required to (?:instantiate|convert) .{0,40}tokenizer",
            r"You need to have (?:sentencepiece|tiktoken)",
            r"\w*Tokenizer\w* requires the \w+ library",
            r"(?:Error|Internal:) .{0,60}(?:sentencepiece|tokenizer\.model|parsing vocabulary)",
            r".{0,300}resolve/[\w./-]+/(?:tokenizer|vocab|merges|special_tokens)[\w.]*",
        ),
        Class.TOKENIZER_ERROR,
        _TOKENIZER_ADVICE,
    ),
    Rule(
        sentence(r"We couldn't connect to 'https?://", r".{0,80}Max retries exceeded with url"),
        Class.TOKENIZER_ERROR,
        "The model hub did not answer the client, which wants the tokenizer: tried again. Give it a local path.",
        phases=CLIENT_SIDE,
        retryable=True,
    ),
    Rule(sentence(*_HUB_NAME), Class.TOKENIZER_ERROR, _TOKENIZER_ADVICE, phases=CLIENT_SIDE),
    # descriptors of the client
    Rule(
        sentence(r"Cannot connect to host .*\[Too many open files\]"),
        Class.CLIENT_ERROR,
        "The client ran out of file descriptors: raise ulimit -n or limit its concurrency.",
    ),
    Rule(
        sentence(r"(?:\[Errno 24\] )?Too many open files"),
        Class.CLIENT_ERROR,
        "The client ran out of file descriptors: raise ulimit -n or limit its concurrency.",
        phases=CLIENT_SIDE,
    ),
    # a signal before Python has its own way to end by it
    Rule(
        sentence(r"KeyboardInterrupt\b"),
        Class.CLIENT_ERROR,
        "The load client was interrupted (SIGINT), and not by this trial: no verdict on the flags. Tried again.",
        tier=Tier.SYMPTOM,
        phases=CLIENT_SIDE,
        retryable=True,
    ),
    # what the client saw
    Rule(
        sentence(
            r"(?:[\w.]+\.)?(?:Connection|ServerTimeout|SocketTimeout|Read|asyncio)?Time[oO]ut(?:Error)?\b(?!.*RPC)",
            r"Connection timeout to host",
            r"Timeout on reading data from socket",
        ),
        Class.CLIENT_ERROR,
        "Requests timed out while the server was alive.",
        tier=Tier.SYMPTOM,
        phases=_CLIENT,
        kind=Kind.CLIENT_TIMEOUT,
    ),
    Rule(
        re.compile(
            r"^(?=.*\b(?:load|benchmark|client|streams?|requests?)\b)"
            r"(?=.*(?:exceed|tim(?:ed?|e) ?-?out|stalled|no progress|over its limit|gave up|giving up|cut))",
            re.IGNORECASE,
        ),
        Class.CLIENT_ERROR,
        "The load did not end in its time while the server lived.",
        tier=Tier.SYMPTOM,
        phases=UNDER_LOAD,
        kind=Kind.CLIENT_TIMEOUT,
        source="tuner",
        anywhere=True,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"Initial test run failed .*Error: .*(?:Gateway|Service Unavailable|Internal Server Error|Too Many Requests"
            r"|Cannot connect|[Cc]onnection (?:refused|reset)|[Dd]isconnected)",
        ),
        Class.CLIENT_ERROR,
        _CONNECTION_ADVICE,
        tier=Tier.SYMPTOM,
        phases=_CLIENT,
        retryable=True,
    ),
    Rule(
        sentence(
            r"Initial test run failed(?!.*Error: Traceback)",  # the traceback below it says more
            r"Failed to fetch models from server",
            r"No models found on the server",
            r"Unknown backend",
            r"Cannot use '\S+' dataset with --dataset-path",
            r"(?:Bad Request|Unauthorized|Forbidden|Not Found|Unprocessable Entity|Method Not Allowed)$",
            r"This model's maximum context length is",
            r"The (?:\w+ )?prompt \(length \d+\)",
            r"The model `?\S+`? does not exist",
            r"Invalid format found for service level objectives",
            r"(?:UserWarning: )?All requests failed",
        ),
        Class.CLIENT_ERROR,
        "The server answers, and refuses what the client asks for: check model name, key, endpoint and prompt lengths.",
        tier=Tier.SYMPTOM,
        phases=_CLIENT,
    ),
    Rule(
        sentence(
            r'[\w.:\[\]]+:\d+ - "POST /\S+ HTTP/1\.\d" (?:400|401|403|404|405|413|415|422)\b',
            r".{0,80}(?:UserWarning: )All requests failed",
            r".{0,200}This model's maximum context length is",
            r"Endpoint is not ready\. Error='(?:Not Found|Unauthorized|Bad Request|Forbidden)",
        ),
        Class.CLIENT_ERROR,
        "The server answers, and refuses what the client asks for: check model name, key, endpoint and prompt lengths.",
        tier=Tier.SYMPTOM,
        phases=_CLIENT,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"Cannot connect to host",
            r"Server disconnected",
            r"(?:[\w.]+\.)?(?:ServerDisconnected|ClientOS|ClientPayload|TransferEncoding|ClientConnect\w*)Error\b",
            r"Cannot write to closing transport",
            r"Response payload is not completed",
            r"(?:\[Errno 111\] )?Connection refused",
            r"Connect call failed",
        ),
        Class.CLIENT_ERROR,
        _CONNECTION_ADVICE,
        tier=Tier.SYMPTOM,
        phases=_CLIENT,
        retryable=True,
    ),
    Rule(
        sentence(r"Initial test run failed .*Error: Traceback"),
        Class.CLIENT_ERROR,
        "The load client's first request failed; the traceback below it says why.",
        tier=Tier.COUNT,
        phases=_CLIENT,
    ),
    Rule(
        sentence(r'[\w.:\[\]]+:\d+ - "POST /\S+ HTTP/1\.\d" (?:429|5\d\d)\b'),
        Class.CLIENT_ERROR,
        "The server answered some requests with an error of its own. Tried again.",
        tier=Tier.COUNT,
        phases=_CLIENT,
        retryable=True,
        quiet_too=True,
    ),
    Rule(
        sentence(r"(?:Mean|Median|P\d+) (?:TTFT|TPOT|ITL|E2EL) \(ms\): +(?:-\d|nan|-?inf)"),
        Class.CLIENT_ERROR,
        "The load client reports latencies that cannot be. Tried again.",
        tier=Tier.COUNT,
        phases=_CLIENT,
        retryable=True,
        quiet_too=True,
    ),
    Rule(
        sentence(r".{0,80}[Oo]versampl(?:ed|ing) requests"),
        Class.DATASET_MALFORMED,
        "No failure: there are fewer usable prompts than asked for, so some are repeated, and the prefix cache is warm "
        "for them.",
        tier=Tier.REMARK,
        phases=_CLIENT,
        harmless=True,
        quiet_too=True,
    ),
)
