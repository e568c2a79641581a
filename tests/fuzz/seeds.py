#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets from the golden checkpoints.

    tests/fuzz/seeds.py

Every seed is a real file with smaller numbers: the golden checkpoint's names,
types and order of tensors, its configuration, its tokenizer. Zeros stand for
weights. Seeds that a target must accept are named `good-...`; the test of the
corpora asserts it. Needs Python 3.9 and, for the library, a C compiler.
"""

import json
import os
import re
import struct
import subprocess
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "..", "goldens")
BYTES = {"F32": 4, "U32": 4, "BF16": 2, "F16": 2}
FAMILIES = ["llama", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe"]

# The smallest widths that are computed; packed groups have 32 weights.
UNITS = {"hf": 16, "mlx": 32}


def sizes(unit):
    """What the golden checkpoints' sizes become."""
    return {
        "hidden_size": unit, "vocab_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "head_dim": unit, "intermediate_size": unit, "max_position_embeddings": 64,
        "linear_num_key_heads": 1, "linear_num_value_heads": 1, "linear_key_head_dim": 16,
        "linear_value_head_dim": unit, "moe_intermediate_size": unit, "shared_expert_intermediate_size": unit,
        "num_experts": 2, "num_experts_per_tok": 1, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 2,
    }


def write(path, content):
    path = os.path.join(HERE, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content if isinstance(content, bytes) else content.encode())


def header(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def safetensors(tensors, pad):
    """`tensors` maps a name to a type and a shape."""
    entries, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, shape) in tensors.items():
        size = BYTES[dtype]
        for extent in shape:
            size *= extent
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(offset)


def shape_of(name, unit):
    """Shape of a module's matrix or vector, unpacked, by its name."""
    table = [
        (r"embed_tokens|lm_head", [16, unit]),
        (r"self_attn\.[qkv]_proj\.bias$|self_attn\.[qk]_norm", [unit]),
        (r"self_attn\.[qkvo]_proj", [unit, unit]),
        (r"in_proj_qkv", [32 + unit, unit]), (r"in_proj_z", [unit, unit]), (r"in_proj_[ab]", [1, unit]),
        (r"linear_attn\.(A_log|dt_bias)", [1]), (r"linear_attn\.norm", [unit]),
        (r"linear_attn\.out_proj", [unit, unit]),
        (r"experts\.gate_up_proj", [2, 2 * unit, unit]),
        (r"(experts\.down_proj|switch_mlp\..*_proj)", [2, unit, unit]),
        (r"mlp\.gate\.", [2, unit]), (r"shared_expert_gate", [1, unit]),
        (r"mlp\..*_proj", [unit, unit]), (r"mtp\.fc", [unit, 2 * unit]), (r"norm", [unit]),
    ]
    return next(shape for pattern, shape in table if re.search(pattern, name))


def shrunk(path, unit, gated=False):
    tensors = {}
    for name, entry in header(path).items():
        if name == "__metadata__" or re.search(r"layers\.([2-9]|\d\d)\.", name):
            continue
        if "mtp." not in name and ".layers.1." in name:
            continue
        if "conv1d" in name:
            shape = [32 + unit, 1, 4] if entry["shape"][1] == 1 else [32 + unit, 4, 1]
        else:
            shape = list(shape_of(name, unit))
            if gated and "self_attn.q_proj" in name:
                shape[0] *= 2
        bits = 8 if re.search(r"mlp\.gate\.|shared_expert_gate", name) else 4
        if entry["dtype"] == "U32":
            shape[-1] = shape[-1] * bits // 32
        elif name.endswith((".scales", ".biases")):
            shape[-1] //= 32
        tensors[name] = (entry["dtype"], shape)
    return tensors


def configuration(path, unit):
    with open(path) as file:
        config = json.load(file)
    for section in (config, config.get("text_config", {})):
        for key in list(section):
            section[key] = sizes(unit).get(key, section[key])
        if "layer_types" in section:
            section["layer_types"] = ["linear_attention"]
        if isinstance(section.get("rope_parameters"), dict):
            section["rope_parameters"].pop("mrope_section", None)
    for key in ("quantization", "quantization_config"):
        if key in config:
            config[key] = {
                module: dict(of, group_size=32) if isinstance(of, dict) else of
                for module, of in config[key].items()
                if not re.search(r"layers\.[1-9]\.", module)
            }
            config[key]["group_size"] = 32
    return json.dumps(config, indent=1) + "\n"


def checkpoints():
    for family in FAMILIES:
        for form, suffix in (("hf", ""), ("mlx", "-mlx-4bit")):
            golden = os.path.join(GOLDENS, f"tiny-{family}{suffix}")
            unit = UNITS[form]
            tensors = shrunk(os.path.join(golden, "model.safetensors"), unit, "3_5" in family)
            write(f"corpus/safetensors/good-{family}-{form}", safetensors(tensors, pad=form == "hf"))
            write(f"corpus/config/good-{family}-{form}", configuration(os.path.join(golden, "config.json"), unit))
    tensors = list(shrunk(os.path.join(GOLDENS, "tiny-llama", "model.safetensors"), UNITS["hf"]).items())
    shards = [dict(tensors[:5]), dict(tensors[5:])]
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name, shard in zip(names, shards):
        write(f"shards/{name}", safetensors(shard, pad=True))
    index = {name: file for file, shard in zip(names, shards) for name in shard}
    document = {"metadata": {"total_size": 0}, "weight_map": index}
    write("corpus/safetensors/good-index", json.dumps(document, indent=1))


def drafter_shape(name, taps):
    """Shape of a small drafter's tensor: width 16, two heads of 8 over one, 16 ids."""
    table = [
        (r"^fc\.", [16, 16 * taps]), (r"[qk]_norm", [8]), (r"[kv]_proj", [8, 16]), (r"kernel_projection", [8, 16]),
        (r"base_kernel", [2, 2, 16]), (r"hidden_projection", [4, 16]), (r"codebook", [16, 4]),
        (r"_proj\.", [16, 16]), (r"norm", [16]),
    ]
    return next(shape for pattern, shape in table if re.search(pattern, name))


def drafters():
    small = {
        "hidden_size": 16, "vocab_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "intermediate_size": 16, "sliding_window": 4, "block_size": 4, "mask_token_id": 15, "conv_group_size": 8,
        "selector_rank": 4, "selector_top_k": 4, "max_position_embeddings": 64,
    }
    for golden in ("v1-swa", "v2-scaled"):
        folder = os.path.join(GOLDENS, "dflash", golden, "drafter")
        with open(os.path.join(folder, "config.json")) as file:
            config = json.load(file)
        for section in (config, config["dflash_config"]):
            section.update({key: small[key] for key in section if key in small})
        taps = len(config["dflash_config"]["target_layer_ids"])
        names = [name for name in header(os.path.join(folder, "model.safetensors")) if name != "__metadata__"]
        tensors = {name: ("BF16", drafter_shape(name, taps)) for name in names}
        write(f"corpus/drafter/good-{golden}", json.dumps(config, indent=1) + "\n")
        write(f"drafters/{golden}.safetensors", safetensors(tensors, pad=True))


def tokenizer(golden, merges):
    """The golden tokenizer with its bytes, its marks and a few merges."""
    with open(os.path.join(GOLDENS, golden, "tokenizer.json")) as file:
        document = json.load(file)
    model = document["model"]
    marks = {token["content"] for token in document["added_tokens"]}
    kept = model["merges"][:merges]
    joined = {"".join(pair if isinstance(pair, list) else pair.split(" ")) for pair in kept}
    old = sorted(model["vocab"].items(), key=lambda entry: entry[1])
    tokens = [token for token, _ in old if len(token) == 1 or token in joined and token not in marks]
    tokens += [token for token in model["vocab"] if token in marks]
    model["vocab"] = {token: number for number, token in enumerate(tokens)}
    model["merges"] = kept
    next_id = len(tokens)
    for token in document["added_tokens"]:
        if token["content"] not in model["vocab"]:
            token["id"], next_id = next_id, next_id + 1
        else:
            token["id"] = model["vocab"][token["content"]]
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


SENTENCES = {  # a vocabulary of scored pieces with bytes, as Llama 2 has it
    "version": "1.0", "truncation": None, "padding": None,
    "added_tokens": [{"id": i, "content": c, "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True} for i, c in enumerate(["<unk>", "<s>", "</s>"])],
    "normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
    "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing",
                       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                       "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                       "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
    "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"},
        {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
              "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
              "vocab": dict([("<unk>", 0), ("<s>", 1), ("</s>", 2), ("\u2581", 3), ("a", 4), ("b", 5), ("ab", 6),
                             ("\u2581ab", 7)] + [(f"<0x{b:02X}>", 8 + i) for i, b in enumerate(range(0xE0, 0xE8))]),
              "merges": ["a b", "\u2581 ab"]},
}

EVERYTHING = """{% macro turn(role, text) %}{{ '<|im_start|>' ~ role ~ '\\n' ~ text ~ '<|im_end|>\\n' }}{% endmacro -%}
{% set ns = namespace(last=-1, seen=[]) %}
{%- for message in messages[::-1] if message.role == 'user' %}{% set ns.last = loop.index0 %}{% break %}{% endfor %}
{%- if tools %}{{ turn('system', '# Tools\\n' ~ (tools | map('tojson') | join('\\n'))) }}{% endif %}
{%- for message in messages %}
{%- if message.content is not string %}{{ raise_exception('content must be text, not ' ~ message.content) }}{% endif %}
{%- set text = message.content.split('</think>')[-1].lstrip('\\n') if '</think>' in message.content else message.content | trim %}
{{- turn(message.role, text) }}{% for call in message.tool_calls or [] %}{% for key, value in call.function.arguments.items() %}
{{- key }}={{ value if value is string else value | tojson(indent=2) }}{% endfor %}{% endfor %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{{ '<think>\\n' if enable_thinking | default(true) else '' }}{{ strftime_now('%Y-%m-%d')[:0] }}{% endif %}
"""


def texts():
    def template(golden):
        with open(os.path.join(GOLDENS, golden, "chat_template.jinja")) as file:
            return file.read()

    def config(golden):
        with open(os.path.join(GOLDENS, golden, "tokenizer_config.json")) as file:
            return file.read()

    def seed(name, *parts):
        write(f"corpus/tokenizer/good-{name}", b"\0".join(part.encode() for part in parts))

    seed("qwen", tokenizer("tiny-qwen3_5", 12), config("tiny-qwen3_5"), template("tiny-qwen3_5"))
    seed("llama", tokenizer("tiny-llama", 12), config("tiny-llama"))
    sentences = json.dumps(SENTENCES, ensure_ascii=False, separators=(",", ":"))
    seed("sentences", sentences, '{"add_bos_token": true, "bos_token": "<s>", "eos_token": {"content": "</s>"}}')
    named = [{"name": "tool_use", "template": "{{ tools | tojson }}"}, {"name": "default", "template": EVERYTHING}]
    seed("named-templates", sentences, json.dumps({"chat_template": named}))
    seed("template", sentences, "", EVERYTHING)
    # Values that a template puts into each other until a stack or the memory ends.
    for name, times, how in [("deep", 9000, "[ns.x]"), ("doubled", 60, "[ns.x, ns.x]")]:
        template = "{% set ns = namespace(x=[1]) %}{% for i in range(TIMES) %}{% set ns.x = HOW %}{% endfor %}{{ ns.x SAY }}"
        for say in ("", "| tojson"):
            source = template.replace("TIMES", str(times)).replace("HOW", how).replace("SAY", say)
            seed(f"lists-{name}{say.strip('| ') and '-' + say.strip('| ')}", sentences, "", source)
    unigram = dict(SENTENCES, model={"type": "Unigram", "unk_id": 0, "byte_fallback": False, "vocab": [
        ["<unk>", 0.0], ["<s>", 0.0], ["</s>", 0.0], ["\u2581", -2.0], ["a", -3.0], ["b", -3.5], ["\u2581ab", -4.0]]})
    seed("unigram", json.dumps(unigram, ensure_ascii=False, separators=(",", ":")), "{}", "{{ messages }}")
    pieces = {"version": "1.0", "added_tokens": [], "normalizer": {"type": "BertNormalizer", "clean_text": True,
              "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
              "pre_tokenizer": {"type": "BertPreTokenizer"}, "post_processor": None,
              "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
              "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                        "max_input_chars_per_word": 100, "vocab": {"[UNK]": 0, "hello": 1, "##lo": 2, "wor": 3}}}
    seed("pieces", json.dumps(pieces, separators=(",", ":")), "")


# GGUF's numbers of types, with the bytes of a block of 32.
GGUF_TYPES = {"f32": (0, 128), "f16": (1, 64), "q4_0": (2, 18), "q4_1": (3, 20), "q8_0": (8, 34), "bf16": (30, 64)}


def gguf(architecture, splitting, kind, extra):
    """A model of one layer and a width of 32; matrices are of one type."""
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def pair(key, value):
        if isinstance(value, bool):
            return text(key) + struct.pack("<IB", 7, value)
        if isinstance(value, int):
            return text(key) + struct.pack("<II", 4, value)
        if isinstance(value, float):
            return text(key) + struct.pack("<If", 6, value)
        if isinstance(value, str):
            return text(key) + struct.pack("<I", 8) + text(value)
        if isinstance(value[0], str):
            return text(key) + struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        return text(key) + struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)

    tokens = ["<end>", "a", "b", "\u0120", "ab", "\u0120ab", "<|im_end|>", "[PAD7]"]
    values = {
        "general.architecture": architecture, f"{architecture}.block_count": 1,
        f"{architecture}.context_length": 64, f"{architecture}.embedding_length": 32,
        f"{architecture}.feed_forward_length": 32, f"{architecture}.attention.head_count": 1,
        f"{architecture}.attention.head_count_kv": 1, f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 1e4, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": splitting,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 3, 5],
        "tokenizer.ggml.merges": ["a b", "\u0120 ab"], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 6,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
    }
    matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    tensors = [("token_embd.weight", [32, 8], kind), ("output_norm.weight", [32], "f32")]
    tensors += [(f"blk.0.{name}.weight", [32, 32], kind) for name in matrices]
    tensors += [(f"blk.0.{name}.weight", [32], "f32") for name in ("attn_norm", "ffn_norm")]
    tensors += [(name, shape, "f32" if len(shape) == 1 else kind) for name, shape in extra]
    file = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    file += b"".join(pair(key, value) for key, value in values.items())
    data = b""
    for name, shape, of in tensors:
        number, block = GGUF_TYPES[of]
        file += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, len(data))
        blocks = shape[0] // 32 * (shape[1] if len(shape) > 1 else 1)
        data += bytes(blocks * block)
        data += bytes(-len(data) % 32)
    return file + bytes(-len(file) % 32) + data


def ggufs():
    biases = [(f"blk.0.attn_{part}.bias", [32]) for part in "qkv"]
    norms = [(f"blk.0.attn_{part}_norm.weight", [32]) for part in "qk"]
    for name, architecture, splitting, kind, extra in [
        ("llama-q4_0", "llama", "smollm", "q4_0", []), ("llama-q4_1", "llama", "llama-bpe", "q4_1", []),
        ("llama-f16", "llama", "default", "f16", [("output.weight", [32, 8])]),
        ("qwen2-q8_0", "qwen2", "smollm", "q8_0", biases), ("qwen3-bf16", "qwen3", "qwen2", "bf16", norms),
        ("qwen3-f32", "qwen3", "smollm", "f32", norms),
    ]:
        write(f"corpus/gguf/good-{name}", gguf(architecture, splitting, kind, extra))


MANIFEST = os.path.join(HERE, "..", "..", "plugins", "backend-cpu", "tensorfold_plugin.toml")

LIBRARY = """
__attribute__((section("%s"), used, visibility("default"))) const char %s[] = {%s};
__attribute__((visibility("default"))) const void *%s[8] = {0};
extern int puts(const char *);
__attribute__((visibility("default"))) int f(void) { return puts(""); }
"""


def plugins():
    with open(MANIFEST, "rb") as file:
        manifest = file.read()
    write("corpus/manifest/good-cpu", manifest)
    with open(os.path.join(HERE, "..", "plugins", "successor.toml"), "rb") as file:
        write("corpus/manifest/good-successor", file.read())
    with open(os.path.join(HERE, "..", "..", "plugin-api", "src", "abi", "descriptor.rs")) as file:
        names = dict(re.findall(r'pub const (\w+): &str = "([^"]+)";', file.read()))
    with tempfile.TemporaryDirectory() as folder:
        source, library = os.path.join(folder, "p.c"), os.path.join(folder, "p.so")
        # Without comments and the parts that the other seeds have.
        short = re.sub(rb"(?m)^#.*\n|^\[unsupported\]\n(.+\n)*", b"", manifest)
        data = ",".join(map(str, short))
        with open(source, "w") as file:
            file.write(LIBRARY % (names["MANIFEST_SECTION"], names["MANIFEST_SYMBOL"], data, names["DESCRIPTOR_SYMBOL"]))
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-Os", "-nostartfiles", "-fno-asynchronous-unwind-tables", "-Wl,-z,noseparate-code",
             "-Wl,-z,max-page-size=64", "-Wl,--build-id=none", "-Wl,-z,now", "-Wl,-s", "-Wl,-soname,libp.so",
             "-o", library, source], check=True)
        with open(library, "rb") as file:
            write("corpus/manifest/good-library", file.read())


if __name__ == "__main__":
    checkpoints()
    drafters()
    texts()
    ggufs()
    plugins()
