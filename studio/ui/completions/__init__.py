"""An OpenAI-compatible address of finished models: what is asked is checked here, answered by services/chat_service."""
