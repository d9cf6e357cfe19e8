"""fairgate: the fair, SLA-tiered front door of a self-hosted LLM fleet."""

__version__ = "0.1.0"
