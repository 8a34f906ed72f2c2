"""The chat template of a checkpoint, from whichever file holds it. What it renders is not known here."""

from typing import Any

from llmrun.convert.files import optional_object
from llmrun.convert.vocab.tokenizer import TokenizerFiles

Template = str | list[dict[str, str]]


def find(files: TokenizerFiles, notes: list[str]) -> Template | None:
    """tokenizer_config.json's template, else chat_template.jinja (with its named companions), else
    chat_template.json. Several come as {"name", "template"} entries, "default" among them."""
    folder = files.folder
    found: Any = files.config.get("chat_template")
    if found is None and (folder / "chat_template.jinja").is_file():
        found = (folder / "chat_template.jinja").read_text(encoding="utf-8")
        named = sorted((folder / "additional_chat_templates").glob("*.jinja"))
        if named:
            found = [{"name": "default", "template": found}]
            found += [{"name": path.stem, "template": path.read_text(encoding="utf-8")} for path in named]
    if found is None and (json_form := optional_object(folder / "chat_template.json")) is not None:
        found = json_form.get("chat_template")
    if isinstance(found, list):
        found = [
            {"name": entry["name"], "template": entry["template"]}
            for entry in found
            if isinstance(entry, dict)
            and isinstance(entry.get("name"), str)
            and isinstance(entry.get("template"), str)
        ]
    if found is not None and not isinstance(found, str | list):
        notes.append("the chat template is neither text nor a list of texts and is left out")
        return None
    return found
