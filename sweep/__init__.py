"""Tune the production flags of vLLM servers: real servers, real load, evidence in Parquet."""

__version__ = "0.1.0"
