"""To and from other tools: the parameter files and results of `vllm bench sweep`, and Optuna's storage."""
