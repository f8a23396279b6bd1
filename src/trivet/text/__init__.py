"""Text: tokenizers, chat templates and chat formats. No tensors."""
