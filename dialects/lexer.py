"""The lexer of MLIR text that we read with."""

import re

from xdsl.utils.mlir_lexer import MLIRLexer


class Lexer(MLIRLexer):
    """xDSL's lexer takes time exponential in the length of a string that has no closing quote; this one does not."""

    _unescaped_characters_regex = re.compile(
        MLIRLexer._unescaped_characters_regex.pattern.replace("]+|", "]|")
    )
