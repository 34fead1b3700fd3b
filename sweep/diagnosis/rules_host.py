"""Driver and hardware, disk and RAM, models, builds, ports, and the cluster around the trial.

Sentences of the CUDA driver and NVML, of the kernel, of huggingface_hub, transformers and safetensors, of Triton, ninja
and the dynamic linker, of uvicorn, ZeroMQ and c10d for ports, and of Ray.
"""

from __future__ import annotations

from sweep.diagnosis.rule import STARTING, Rule, Tier, sentence
from sweep.diagnosis.values import FailureClass as Class

_DRIVER_ADVICE = "The GPU or its driver does not work: nvidia-smi and the kernel log say more. No flag mends this."
_MODEL_ADVICE = "The model cannot be loaded whatever the flags: check its path or id, access, files and architecture."
_BUILD_ADVICE = "This installation cannot run the model (compiler, library or kernel): mend it; no flag is to blame."
_HARDWARE_XID = "48|61|62|63|64|74|79|92|94|95|109|110|119|120|121|136|137|140|143|154"

RULES = (
    # ports
    Rule(
        sentence(
            r"\[Errno (?:98|48)\]",
            r"[Aa]ddress already in use",
            r"The server socket has failed to (?:listen|bind)",
            r".{0,120}\bEADDRINUSE\b",
            r"error while attempting to bind on address",
        ),
        Class.PORT_IN_USE,
        "The port is taken: tried again with another one.",
    ),
    Rule(
        sentence(r"\[Errno (?:13|99)\]", r".{0,80}[Cc]annot assign requested address"),
        Class.OTHER,
        "This host does not let it: an address it does not have, a port below 1024, or a file that may not be read.",
        at_once=True,
    ),
    # driver and hardware
    Rule(
        sentence(rf"NVRM: Xid \([^)]*\): (?:{_HARDWARE_XID}),", r"GPU has fallen off the bus"),
        Class.DRIVER_ERROR,
        "The GPU reports a hardware fault: nothing measured on it can be trusted until it is reset or replaced.",
        anywhere=True,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"RM has detected an NVML/RM version mismatch",
            r"(?:Failed to initialize NVML: )?Driver/library version mismatch",
            r"NVML Shared Library Not Found",
            r"(?:Failed to initialize NVML: )?Driver Not Loaded",
            r"Failed to initialize NVML",
            r"GPU is lost",
            r"NVIDIA-SMI has failed",
            r"(?:[\w.]+\.)?NVMLError\w*",
            r"(?:CUDA|HIP)(?: driver)? [eE]rror: (?:uncorrectable|CUDA driver version is insufficient|no CUDA-capable"
            r"|system (?:not yet|has unsupported)|unknown error|initialization error|no kernel image"
            r"|device kernel image|forward compat|hardware stack|the provided PTX|(?:all )?CUDA-capable device"
            r"|API call is not|driver shutting down|the operation cannot be performed in the present state)",
            r"CUDA driver version is insufficient",
            r"CUDA driver initialization failed",
            r"The NVIDIA driver on your system is too old",
            r"(?:No CUDA GPUs|No HIP GPUs|No GPUs?) (?:are|is|were) (?:available|found|detected)",
            r"Found no NVIDIA driver",
            r"Unexpected error from cudaGetDeviceCount",
            r"CUDA unknown error",
            r"libcuda\.so\S*: cannot open shared object file",
            r"NVRM: (?:API mismatch|RmInitAdapter failed|GPU \S+ RmInitAdapter)",
            r"nvidia-container-cli: ",
            r"NVML returned no GPU",
        ),
        Class.DRIVER_ERROR,
        _DRIVER_ADVICE,
    ),
    Rule(
        sentence(r"Failed to infer device type", r"Device string must not be empty"),
        Class.DRIVER_ERROR,
        "vLLM finds no usable device: the driver or the container's access to it is missing.",
        tier=Tier.GENERAL,
    ),
    # disk, RAM, descriptors
    Rule(
        sentence(r"(?:\[Errno (?:28|122)\] )?(?:No space left on device|Disk quota exceeded)"),
        Class.OTHER,
        "The disk is full: free space (caches, results, logs), then start again.",
        host=True,
    ),
    Rule(
        sentence(
            r"Out of memory: Killed process \d+",
            r"Memory cgroup out of memory",
            r"\boom[-_]kill(?:er|ed)?\b[ :]",
            r"\bOOMKilled\b",
            r"^Killed$",
        ),
        Class.OTHER,
        "The kernel killed it because the host's RAM ran out (not the GPU's memory): fewer workers, less swap space or "
        "offload, or more RAM.",
        host=True,
        anywhere=True,
        quiet_too=True,
    ),
    Rule(
        sentence(
            r"MemoryError\b",
            r"\[Errno 12\] Cannot allocate memory",
            r".*cannot allocate memory in static TLS",
            r"(?:terminate called after throwing an instance of '|what\(\): +)std::bad_alloc",
        ),
        Class.OTHER,
        "The host's RAM ran out: fewer workers, less swap space or offload, or more RAM.",
        host=True,
    ),
    Rule(
        sentence(r"terminate called after throwing an instance of 'std::system_error'"),
        Class.OTHER,
        "The host refused a thread: raise ulimit -u and the container's limit of processes (or its seccomp profile).",
        tier=Tier.GENERAL,
        host=True,
    ),
    Rule(
        sentence(r"NVRM: .{0,80}Out of memory \[NV_ERR_NO_MEMORY\]"),
        Class.OTHER,
        "The driver got no memory from the host: where GPU and CPU share it, ask for less; else free RAM.",
        tier=Tier.GENERAL,
        host=True,
    ),
    Rule(
        sentence(r"(?:\[Errno 24\] )?Too many open files"),
        Class.OTHER,
        "The server ran out of file descriptors: raise ulimit -n for it.",
    ),
    Rule(
        sentence(
            r"(?:\S+ )?Workers \(tasks / actors\) killed due to memory pressure",
            r"The actor \w+ is unavailable",
            r"The node .{0,200}(?:marked dead|has died|is dead|missed too many heartbeats)",
            r"The worker died unexpectedly while executing this task",
            r"slurmstepd: error: .*(?:CANCELLED|PREEMPT|TIME LIMIT)",
            r".{0,80}(?:The node was low on resource|\bEvicted\b|pod was evicted)",
            r".{0,40}database is locked",
            r".{0,80}RpcError\b.*(?:Socket closed|[Cc]onnection)",
            r".{0,40}\braylet\b.{0,60}(?:died|not (?:be )?(?:reach|connect))",
            r"The GCS (?:server )?(?:is|has|failed)",
            r"Task was killed due to the node running low on memory",
        ),
        Class.OTHER,
        "The cluster around the trial lost a node or killed a worker for the host's RAM: neither GPU nor flags are to "
        "blame. Look for processes left behind.",
        retryable=True,
        host=True,
    ),
    # models
    Rule(
        sentence(
            r"(?:[\w.]+\.)?(?:ConnectionError|ConnectTimeout|ReadTimeout|LocalEntryNotFoundError|NameResolutionError)\b"
            r".*(?:huggingface|hf\.co|Hub|modelscope|Max retries)",
            r"We couldn't connect to 'https?://",
            r".{0,80}Max retries exceeded with url",
            r"(?:429|50[0234]) (?:Client|Server) Error",
            r".{0,60}Temporary failure in name resolution",
            r"An error happened while trying to locate the file",
        ),
        Class.OTHER,
        "The model hub did not answer: tried again. With the model on disk (HF_HUB_OFFLINE=1) no network is needed.",
        retryable=True,
    ),
    Rule(
        sentence(
            r"You are trying to access a gated repo",
            r"(?:Cannot|Access to model \S+) .{0,60}(?:gated repo|is restricted)",
            r".{0,200}is not a local folder and is not a valid model identifier",
            r"(?:401|403|404) Client Error\b",
            r".{0,120}(?:outgoing traffic has been disabled|offline mode is enabled)",
            r"Repo id must be in the form",
            r"Incorrect path_or_model_id",
            r"(?:[\w.]+\.)?(?:RepositoryNotFoundError|GatedRepoError|EntryNotFoundError)",
            r"Invalid repository ID or local directory",
            r"Model architectures? \S+ .{0,80}(?:not supported|failed to be inspected|was supported)",
            r"The checkpoint you are trying to load has model type",
            r"Unrecognized model in",
            r"Cannot find (?:any model weights|model module|the config file)",
            r"(?:[\w.]+\.)?SafetensorError: ",
            r"Error while deserializing header",
            r".{0,120}does not appear to have (?:a file named|files named)",
            r"Can't load the (?:model|configuration)",
            r"No model architectures are specified",
            r".{0,120}contains custom code which must be executed",
            r"Loading \S+ requires you to execute the configuration file",
            r".{0,300}`?trust_remote_code=True`?",
            r"The following weights were not initialized",
            r"There is no module or parameter named",
            r"It looks like the config file at ",
        ),
        Class.OTHER,
        _MODEL_ADVICE,
        at_once=True,
    ),
    Rule(
        # Python's JSON inside a check of the configuration: flags that are JSON are argparse's to refuse.
        sentence(
            r"(?:Expecting (?:value|property name|'[,:]' delimiter)|Extra data|Unterminated string|Invalid control "
            r"character).{0,80}: line \d+ column \d+ \(char \d+\)"
        ),
        Class.OTHER,
        "A JSON file of the model is no JSON (cut short, or only a pointer to it): fetch the model anew.",
        at_once=True,
        phases=STARTING,
        raised=frozenset({"ValueError"}),
    ),
    # builds
    Rule(
        sentence(
            r"Error building extension",
            r"Command '?\[?'?\S*ninja",
            r"ninja: build stopped",
            r"Failed to find C compiler",
            r"Could not find nvcc",
            r"out of resource: shared memory",
            r"PassManager::run failed",
            r"`?ptxas`?(?: fatal| error| failed|,)",
            r".{0,200}undefined symbol: ",
            r"No module named ",
            r"cannot import name ",
            r"\S+: cannot open shared object file",
            r".{0,120}version `GLIBC\S* not found",
            r"Expandable segments are not compatible",
            r"(?:Sleep mode|CuMem allocator) can only be used for one instance",
            r"No valid triton configs",
            r"operator torchvision::\w+ does not exist",
            r"No package metadata was found",
            r"Current node has no GPU available|Cannot provide a placement group",
            r"KV connector \S+ is incompatible with PYTORCH",
            r"Torch not compiled with CUDA enabled",
            r"\w+ (?:backend )?is (?:not available|unavailable) in the current vLLM environment",
            r"(?:Fatal Python error: )?Illegal instruction",
            r"vLLM failed to compile the model",
        ),
        Class.OTHER,
        _BUILD_ADVICE,
    ),
)
