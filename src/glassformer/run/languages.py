"""English names of languages, by the codes that runs have for theirs. Loads no torch."""

NAMES = {
    **{"ar": "Arabic", "az": "Azerbaijani", "be": "Belarusian", "bg": "Bulgarian", "bn": "Bengali", "bs": "Bosnian"},
    **{"ca": "Catalan", "cs": "Czech", "cy": "Welsh", "da": "Danish", "de": "German", "el": "Greek", "en": "English"},
    **{"eo": "Esperanto", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish"},
    **{"fr": "French", "ga": "Irish", "gl": "Galician", "gu": "Gujarati", "he": "Hebrew", "hi": "Hindi"},
    **{"hr": "Croatian", "hu": "Hungarian", "hy": "Armenian", "id": "Indonesian", "is": "Icelandic", "it": "Italian"},
    **{"ja": "Japanese", "ka": "Georgian", "kk": "Kazakh", "km": "Khmer", "ko": "Korean", "la": "Latin", "lo": "Lao"},
    **{"lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ml": "Malayalam", "mn": "Mongolian", "mr": "Marathi"},
    **{"ms": "Malay", "mul": "Many languages", "my": "Burmese", "nb": "Norwegian", "ne": "Nepali", "nl": "Dutch"},
    **{"nn": "Norwegian Nynorsk", "no": "Norwegian", "pa": "Punjabi", "pl": "Polish", "ps": "Pashto"},
    **{"pt": "Portuguese", "pt-BR": "Portuguese (Brazil)", "ro": "Romanian", "ru": "Russian", "si": "Sinhala"},
    **{"sk": "Slovak", "sl": "Slovenian", "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "sw": "Swahili"},
    **{"ta": "Tamil", "te": "Telugu", "th": "Thai", "tl": "Tagalog", "tr": "Turkish", "uk": "Ukrainian"},
    **{"ur": "Urdu", "uz": "Uzbek", "vi": "Vietnamese", "zh": "Chinese", "zh-Hans": "Chinese (simplified)"},
    **{"zh-Hant": "Chinese (traditional)", "iso": "ISO 8601"},
}
"""English names of languages; others are called by their code."""


def name_of(code: str) -> str:
    """Return the name of a language."""
    return NAMES.get(code, code)
