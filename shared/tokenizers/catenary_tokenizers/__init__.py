"""Exact, cached and injection-safe prompts: load, render, encode, detokenise, hash."""

from catenary_tokenizers.blocks import block_hashes, extend_hashes, images_by_block, root_hash
from catenary_tokenizers.detokenise import Detokenizer
from catenary_tokenizers.errors import ModelDirectoryError, PromptError, TemplateLimitError, TokenizerError
from catenary_tokenizers.gguf import unpack_gguf
from catenary_tokenizers.ids import pack, unpack
from catenary_tokenizers.load import embedded_path, load
from catenary_tokenizers.model import ModelTokenizer, Rendered, Segment
from catenary_tokenizers.segments import CacheStats
from catenary_tokenizers.turn_memory import CarriedTurn, RememberedTurn, TurnMemory, scope_of
from catenary_tokenizers.vocabulary import ControlToken

__all__ = [
    "CacheStats",
    "CarriedTurn",
    "ControlToken",
    "Detokenizer",
    "ModelDirectoryError",
    "ModelTokenizer",
    "PromptError",
    "RememberedTurn",
    "Rendered",
    "Segment",
    "TemplateLimitError",
    "TokenizerError",
    "TurnMemory",
    "block_hashes",
    "embedded_path",
    "extend_hashes",
    "images_by_block",
    "load",
    "pack",
    "root_hash",
    "scope_of",
    "unpack",
    "unpack_gguf",
]
