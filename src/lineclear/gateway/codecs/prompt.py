"""From a conversation, whichever API it came through, to the tokens of a prompt."""

from lineclear.gateway.codecs.sampling import refuse_hopeless
from lineclear.gateway.conversation import Conversation
from lineclear.gateway.errors import InvalidRequestError, refuse
from lineclear.gateway.served_model import ServedModel
from lineclear.gateway.template import Rendered


def render_prompt(conversation: Conversation, model: ServedModel) -> tuple[Rendered, list[int]]:
    """The rendered conversation and its tokens.

    Raises:
        InvalidRequestError: The model has no chat template, or the template refuses the messages.
        PromptTooLongError: They are hopelessly many; whether the rest fits is for the caller to see.
    """
    template = model.assets.template
    if template is None:
        param = conversation.param
        raise InvalidRequestError(f"{param}: this model has no chat template; use /v1/completions", param)
    preview = template.preview(conversation)
    if preview is not None:
        refuse_hopeless(preview, model, conversation.param)
    rendered = template.render(conversation)
    prompt_token_ids = model.assets.tokenization.encode_rendered(rendered.text, rendered.guard)
    if not prompt_token_ids:
        raise refuse(conversation.param, "an empty prompt", "what renders to at least one token")
    return rendered, prompt_token_ids
