"""Logs as people posted them on public issues: what collectors and terminals made of the lines, and rarer causes."""

from __future__ import annotations

import pytest

from sweep.diagnosis import Evidence, Policy, diagnose

_INIT = (
    "\n(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
_WORKER = "(VllmWorker rank=0 pid=4360) "
_SYSLOG = "#033[1;36m(VllmWorker TP2 pid=415)#033[0;0m ERROR 08-31 04:18:45 [multiproc_executor.py:559] "
_COLLECTED = "INFO 2025-11-19T20:16:36.0965Z [resource.labels.containerName: vllm] (EngineCore_DP0 pid=270) "
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB. GPU 0 has a total capacity of 79.25 GiB "
    "of which 250.69 MiB is free. Process 1 has 79.00 GiB memory in use. Of the allocated memory 77.01 GiB is "
    "allocated by PyTorch, and 201.00 MiB is reserved by PyTorch but unallocated."
)

LOGS = {
    "an assert says no more than its code": (
        f'{_WORKER}  File "/lib/vllm/model_executor/models/llama.py", line 122, in __init__\n'
        f"{_WORKER}    assert self.total_num_kv_heads % tp_size == 0\n{_WORKER}           ^^^^^^^^^^^^^^^^^^^^\n"
        f"{_WORKER}AssertionError{_INIT}",
        "invalid_flags",
    ),
    "an assert of the scheduler": (
        "(E pid=5) ERROR 12-09 03:11:02 [core.py:710] EngineCore encountered a fatal error.\n"
        '(E pid=5) ERROR 12-09 03:11:02 [core.py:710]   File "/vllm/core/sched/scheduler.py", line 477, in schedule\n'
        "(E pid=5) ERROR 12-09 03:11:02 [core.py:710]     assert num_new_tokens > 0\n"
        "(E pid=5) ERROR 12-09 03:11:02 [core.py:710] AssertionError",
        "engine_died",
    ),
    "syslog writes control characters as numbers": (
        f"{_SYSLOG}WorkerProc failed to start.#015\n{_SYSLOG}AssertionError: 12 is not divisible by 8#015{_INIT}#015",
        "invalid_flags",
    ),
    "cat -v writes them with a caret": (
        "^[[0;36m(Worker_TP2 pid=1385)^[[0;0m ERROR 03-05 08:00:26 [x.py:822] ValueError: No available memory for the "
        "cache blocks.^M",
        "kv_cache_too_small",
    ),
    "a collector calls every line INFO": (
        f'{_COLLECTED}ERROR 11-19 12:16:36 [v1/engine/core.py:842] File "/vllm/gpu_model_runner.py", line 3934, in '
        f"_dummy_sampler_run\n{_COLLECTED}ERROR 11-19 12:16:36 [v1/engine/core.py:842] {_OOM}{_INIT}",
        "startup_oom",
    ),
    "Python's own format of a log": (
        "2025-11-02 13:17:04,315 - vllm.v1.engine.core_client - ERROR - Engine core proc EngineCore_DP0 died "
        "unexpectedly, shutting down client.",
        "engine_died",
    ),
    "dates with a year": (
        "(Worker_DP1 pid=2493) ERROR 2026-04-25 10:01:17.340 [mooncake_connector.py:246] zmq.error.ZMQError: Address "
        "already in use (addr='tcp://192.0.2.16:20012')^M",
        "port_in_use",
    ),
    "a file of the model is no JSON": (
        "(A pid=2) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "(A pid=2)   Value error, Expecting value: line 1 column 1 (char 0) [type=value_error, "
        "input_value=ArgsKwargs((), {'model': ...rocessor_plugin': None}), input_type=ArgsKwargs]",
        "other",
    ),
    "the stream of a container, as CRI writes it": (
        '2025-11-03T21:19:45.400528426+08:00 stderr F   File "/lib/transformers/tokenization_utils_base.py", line 11, '
        "in __getattr__\n2025-11-03T21:19:45.400542593+08:00 stderr F AttributeError: Qwen2TokenizerFast has no "
        "attribute tokenizer",
        "tokenizer_error",
    ),
    "the file of a container, as Docker writes it": (
        '{"log":"  what():  std::bad_alloc\\n","stream":"stderr","time":"2026-04-01T01:00:00.1Z"}\n'
        '{"log":"RuntimeError: Engine core initialization failed.\\n","stream":"stderr","time":"2026-04-01T01:00:00Z"}',
        "other",
    ),
    "kernels for an FP8 that the card does not have": (
        '  File "/lib/triton/language/semantic.py", line 759, in cast\n'
        "AssertionError: fp8e4nv data type is not supported on CUDA arch < 89",
        "invalid_flags",
    ),
    "not yet supported": (
        '(E pid=1) ERROR 03-04 17:08:57 [core.py:303]   File "/vllm/attention/flash_attn.py", line 185, in __init__\n'
        "(E pid=1) ERROR 03-04 17:08:57 [core.py:303] NotImplementedError: FlashAttention V1 with FP8 KV cache not yet "
        "supported",
        "invalid_flags",
    ),
    "a first request that lost its server": (
        "ValueError: Initial test run failed - Please make sure benchmark arguments are correctly specified. Error: "
        "Traceback (most recent call last):\naiohttp.http_exceptions.TransferEncodingError: 400, message:",
        "client_error",
    ),
    "a host without threads to give": (
        "terminate called after throwing an instance of 'std::system_error'\n  what():  Operation not permitted",
        "other",
    ),
    "an Intel device that was lost": (
        '(W pid=3) ERROR 08-04 09:00:10 [x.py:971]   File "/vllm/v1/worker/gpu_worker.py", line 381, in profile_run\n'
        "(W pid=3) ERROR 08-04 09:00:10 [x.py:971] RuntimeError: level_zero backend failed with error: 20 "
        f"(UR_RESULT_ERROR_DEVICE_LOST){_INIT}",
        "engine_died",
    ),
    "an Intel device without memory": (
        '(W pid=3) ERROR 08-04 09:00:10 [x.py:971]   File "/vllm/v1/worker/gpu_worker.py", line 381, in profile_run\n'
        "(W pid=3) ERROR 08-04 09:00:10 [x.py:971] RuntimeError: level_zero backend failed with error: 39 "
        f"(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY){_INIT}",
        "startup_oom",
    ),
}


@pytest.mark.parametrize("name", LOGS)
def test_logs_as_people_posted_them(name: str) -> None:
    log, truth = LOGS[name]
    found = diagnose(Evidence("client" if truth == "client_error" else None, log=log))
    assert found.failure_class == truth, found
    assert found.line is not None
    assert not found.line.endswith(("^M", "#015"))


def test_a_model_whose_file_is_no_json_stops_the_study() -> None:
    found = diagnose(Evidence(None, log=LOGS["a file of the model is no JSON"][0]))
    assert (found.policy, found.stop_at_once) == (Policy.STOP, True)


def test_a_first_request_that_lost_its_server_is_sent_again() -> None:
    assert diagnose(Evidence("client", log=LOGS["a first request that lost its server"][0])).policy is Policy.RETRY


def test_a_bad_json_of_a_load_client_is_not_the_models() -> None:
    log = "Traceback (most recent call last):\njson.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    assert diagnose(Evidence("dataset", log=log)).failure_class == "dataset_malformed"
    assert diagnose(Evidence("client", log=log)).failure_class == "client_error"


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 05-13 10:46:43 [loggers.py:271] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg "
        "generation throughput: 141.8 tokens/s, Running: 5 reqs, Waiting: 0 reqs, GPU KV cache usage: 21.4%",
        "(EngineCore pid=9) ERROR 05-13 10:46:43 [core.py:710] EngineCore encountered a fatal error.",
    ],
)
def test_what_only_a_serving_engine_prints_tells_the_phase(line: str) -> None:
    assert diagnose(Evidence(None, log=f"{line}\n(E pid=9) ERROR 05-13 10:46:43 [core.py:1] {_OOM}")).phase == "load"
    assert diagnose(Evidence(None, log=f"(E pid=9) ERROR 05-13 10:46:43 [core.py:1] {_OOM}")).phase == "startup"


@pytest.mark.parametrize(
    "line",
    ['{"log":' + "[" * 100_000, '{"log":1}', '{"log":null}', '{"log":"x', '{"log":"a","log":{}}'],
    ids=["deep", "number", "null", "cut", "twice"],
)
def test_what_only_looks_like_a_file_of_docker_is_a_line_like_any_other(line: str) -> None:
    assert (
        diagnose(Evidence(None, log=f"{line}\nOSError: [Errno 98] Address already in use")).failure_class
        == "port_in_use"
    )
