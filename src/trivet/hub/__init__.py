"""Models by name, OWNER/REPO[:QUANT]: which files a name stands for, where they lie, and how they get there.

They lie in the Hugging Face hub's own cache, so that what other programs fetched is found, and they find what
trivet fetches. To look a name up takes no library; only `fetch` imports huggingface_hub.
"""
