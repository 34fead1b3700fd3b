"""Workers and engine: collectives that do not come up, kernels that fault, wrappers that only say "see above".

Sentences of `vllm/v1/engine/`, `vllm/v1/executor/`, of the V0 engine (0.4 to 0.9), of c10d, NCCL, Gloo and CUDA.
"""

from __future__ import annotations

import re

from sweep.diagnosis.rule import STARTING, Rule, Tier, sentence
from sweep.diagnosis.values import FailureClass as Class

_SHM_ADVICE = (
    "/dev/shm is full or too small: remove segments that killed runs left there (nccl-*, psm_*), or give it more "
    "(--shm-size, --ipc=host)."
)
_INIT_ADVICE = "The workers did not find each other (NCCL, Gloo): tried again; if it stays, look at NCCL_DEBUG=INFO."
_FAULT_ADVICE = (
    "A kernel faulted: tried again once before anything is blamed; if it stays, try without its newest flag."
)
_SLOW_ADVICE = (
    "Not ready in time: weights from a cold disk or compilation may need longer. Tried again with warm caches; raise "
    "the start-up limit if it stays."
)
_NOT_VISIBLE = "A wrapper only: the cause is not visible in this log. Tried again."

RULES = (
    # shared memory of the host
    Rule(
        sentence(
            r"NCCL WARN Error while creating shared memory segment",
            r"NCCL WARN .*(?:/dev/shm|shm).*No space left on device",
            r"\[Errno 28\] No space left on device: '?/?(?:dev/shm|psm_)",
            r"Insufficient space in /dev/shm\b",
            r"unable to (?:open|allocate|resize) (?:a )?shared memory.*No space left on device",
        ),
        Class.WORKER_INIT_FAILED,
        _SHM_ADVICE,
        retryable=False,
        host=True,
        anywhere=True,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"(?:Fatal Python error: )?Bus error\b",
            r".{0,80}\bbus error encountered",
            r".{0,120}insufficient shared memory \(shm\)",
            r"\*+ Process received signal .*SIGBUS",
        ),
        Class.WORKER_INIT_FAILED,
        _SHM_ADVICE,
        retryable=False,
        host=True,
    ),
    Rule(
        sentence(r".*Duplicate GPU detected", r"peer access is not supported between these two devices"),
        Class.WORKER_INIT_FAILED,
        "Two ranks on one device, or devices that cannot reach each other: check the visible devices.",
        retryable=False,
    ),
    # kernels and scheduler
    Rule(
        sentence(
            r"(?:CUDA|HIP)(?: driver)? [eE]rror: (?:an illegal|unspecified launch failure|device-side assert|misaligned"
            r"|the launch timed out|invalid (?:argument|configuration|resource|program counter)"
            r"|operation (?:failed|not)|CUBLAS_STATUS_(?:EXECUTION|INTERNAL|INVALID|NOT_SUPPORTED))",
            r"Triton Error \[(?:CUDA|HIP)\]: ",
            r"(?:level_zero backend failed with error|Native API failed\. Native API returns): \d+ ",
            r":\d:rocdevice\.cpp .*aborting with error : HSA_STATUS_ERROR_",
            r"Memory access fault by GPU node-\d+",
            r"Fatal Python error: (?:Segmentation fault|Aborted)",
            r"!+ Segfault encountered",
            r"(?:free|malloc|realloc|munmap_chunk)\(\): (?:invalid|corrupted|unaligned|double|mismatching|unsorted)",
            r"double free or corruption|corrupted size vs\. prev_size|\*{3} stack smashing detected",
            r"(?:Segmentation fault|Aborted) \(core dumped\)",
            r"(?:[\w.]+\.)?NoFreeBlocksError\b",
            r"No free blocks available",
            r"Invalid block found in popleft",
            r"Engine iteration timed out",
            r"NaNs detected in logits",
            r"Workspace is locked but",
        ),
        Class.ENGINE_DIED,
        _FAULT_ADVICE,
    ),
    Rule(
        sentence(r"RPC call to \w+ timed out", r"(?:[Ee]xecute|[Ss]ample)\w* .{0,40}timed out"),
        Class.WORKER_INIT_FAILED,
        "The workers hang: no answer in time. Tried again.",
        load_class=Class.ENGINE_DIED,
        tier=Tier.CONSEQUENCE,
    ),
    Rule(
        sentence(r"(?:CUDA|HIP)(?: driver)? [eE]rror: "),
        Class.ENGINE_DIED,
        "A CUDA error of a kind not known here: tried again once before anything is blamed.",
        tier=Tier.GENERAL,
    ),
    # collectives
    Rule(
        sentence(
            r"NCCL error\b",
            r"\[\d+\] is setting up NCCL communicator",
            r"nccl(?:UnhandledCuda|System|Internal|Remote|InvalidUsage|InvalidArgument)\w*",
            r"(?:Process group watchdog thread terminated with exception: )?(?:\[Rank \d+\] )?"
            r"Watchdog caught collective operation timeout",
            r"Gloo connectFullMesh failed",
            r"\[\S*gloo/transport/\S+\] ",
            r"The client socket has (?:timed out|failed to connect)",
            r"Timed out (?:initializing process group|after \d+ seconds waiting for)",
            r"wait timeout after \d+ms",
            r"Socket Timeout",
            r"(?:Barrier|Barrier departure) timed out",
            r"recvValue failed|sendBytes failed|recvBytes failed|failed to recv, got 0 bytes",
            r"Connection closed by (?:peer|localRank|remote)",
        ),
        Class.WORKER_INIT_FAILED,
        _INIT_ADVICE,
        load_class=Class.ENGINE_DIED,
        tier=Tier.CONSEQUENCE,
    ),
    Rule(
        sentence(r"NCCL WARN (?!.*(?:deprecat|MNNVL|unsupported)).*(?:refused|timed out|failed|error)"),
        Class.WORKER_INIT_FAILED,
        _INIT_ADVICE,
        load_class=Class.ENGINE_DIED,
        tier=Tier.CONSEQUENCE,
        anywhere=True,
        quiet_too=True,
    ),
    # start-up that takes too long
    Rule(
        sentence(
            r"Timed out waiting for engine(?:s| core processes) to",
            r"DP Coordinator process failed to report ZMQ addresses within",
            r"Did not receive response from front-end process within",
            r"Server didn't (?:reply|respond) within",
            r"(?:RPC )?[Ss]erver (?:did not|failed to) (?:start|become ready|respond)\b.{0,40}(?:time|within|after)",
            r"Timeout (?:reached )?waiting for (?:the )?(?:vLLM|server|engine)",
            r"(?:[Hh]ealth|[Rr]eadiness|[Ss]tartup) (?:check|probe)s? .{0,40}(?:timed out|timeout|failed after)",
        ),
        Class.HEALTH_TIMEOUT,
        _SLOW_ADVICE,
        tier=Tier.CONSEQUENCE,
        load_class=Class.ENGINE_DIED,
    ),
    Rule(
        re.compile(
            r"^(?=.*\b(?:server|vllm|engine|/?health|healthy|ready|readiness|startup|start-up)\b)"
            r"(?=.*(?:tim(?:ed?|e) ?-?out|gave up|giving up|no answer|did(?: not|n't)|not (?:yet )?(?:ready|healthy)"
            r"|never|still (?:waiting|loading)))(?=.*\d ?(?:s|sec|secs|seconds|min|minutes|m)\b)",
            re.IGNORECASE,
        ),
        Class.HEALTH_TIMEOUT,
        _SLOW_ADVICE,
        tier=Tier.GENERAL,
        phases=STARTING,
        source="tuner",
        anywhere=True,
        quiet_too=True,
    ),
    # wrappers
    Rule(
        sentence(
            r"WorkerProc (?:initialization failed|failed to start|hit an exception|failed\.)",
            r"Worker proc \S+ died unexpectedly(?! \(exit code: -15\))",
            r"Worker \w+ pid \d+ died, exit code: (?!-15\b)",
            r"RayWorkerProc (?:failed|rank=)",
            r"Ray workers have not started successfully",
            r"Worker \d+ failed to initialize",
            r"Exception in worker \w+ while processing method",
            r"Error executing method '?\w+'?\. This might cause deadlock",
            r"The actor died (?:unexpectedly|because)",
        ),
        Class.WORKER_INIT_FAILED,
        _NOT_VISIBLE,
        load_class=Class.ENGINE_DIED,
        tier=Tier.WORKER_WRAPPER,
    ),
    Rule(
        sentence(
            r"Engine core initialization failed",
            r"Frontend process failed during engine core initialization",
            r"EngineCore (?:failed to start|encountered a|hit an exception)",
            r"EngineCore encountered an issue",
            r"Engine core proc(?:ess)? \S+ died unexpectedly",
            r"Engine process (?:\(pid \d+\) )?(?:failed to start|died)",
            r"Engine (?:loop|background task) (?:is dead|has died|is not running|failed)",
            r"(?:MQLLMEngine|AsyncLLMEngine|The engine) is (?:already )?dead",
            r"(?:Background loop|Background task) (?:has errored|is not running|has finished)",
            r"Task finished unexpectedly",
            r"AsyncLLM output_handler failed",
            r"Got fatal signal from worker processes",
            r"RPCServer process died before responding",
            r"Executor failed",
            r"Input socket thread died",
            r"(?:[\w.]+\.)?(?:Async|MQ|MP)?EngineDeadError\b",
            r"Process \S+ \(PID: \d+\) died with exit code (?!-15\b)",
        ),
        Class.ENGINE_DIED,
        _NOT_VISIBLE,
        tier=Tier.ENGINE_WRAPPER,
    ),
    Rule(
        sentence(r"Request \S+ failed \(engine dead\)"),
        Class.ENGINE_DIED,
        _NOT_VISIBLE,
        tier=Tier.ENGINE_WRAPPER,
        quiet_too=True,
    ),
    Rule(
        sentence(r"(?:\[Errno \d+\] )?(?:Connection reset by peer|Broken pipe)"),
        Class.WORKER_INIT_FAILED,
        _INIT_ADVICE,
        tier=Tier.WORKER_WRAPPER,
        phases=STARTING,
    ),
    # hints
    Rule(
        sentence(r"No available (?:shared memory broadcast )?block found in \d+ second"),
        Class.HEALTH_TIMEOUT,
        "No error in the log; its last word is that processes wait for each other. Tried again.",
        load_class=Class.ENGINE_DIED,
        tier=Tier.REMARK,
        quiet_too=True,
    ),
    Rule(
        sentence(r"Sequence group \S+ is preempted by"),
        Class.OTHER,
        "No failure: requests were preempted because the KV cache was full. The trial counts; more KV cache or fewer "
        "sequences would be faster.",
        informative=True,
        harmless=True,
        tier=Tier.REMARK,
        quiet_too=True,
    ),
)
