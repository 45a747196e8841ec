"""Stands for wheels of SGLang: a few lines each, in a folder where pip finds them."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

SOURCES = {
    "sglang/__init__.py": "raise RuntimeError('a server would begin here')\n",
    "sglang/srt/layers/attention/trtllm_mha_backend.py": "class TRTLLMHAAttnBackend: pass\n",
    "sglang/srt/layers/attention/trtllm_mla_backend.py": "class TRTLLMMLABackend: pass\n",
    "sglang/srt/layers/attention/table.json": "{}\n",
    "sglang/multimodal_gen/pictures.py": "raise RuntimeError('not for attention')\n",
    "tools/get_version_tag.py": "raise RuntimeError('not in the package')\n",
}
"""What wheels hold by default: some of it is needed, some is not."""


def make_wheel(
    folder: Path,
    version: str,
    files: Mapping[str, str] = SOURCES,
    pins: str = "flashinfer_python",
    distribution: str = "sglang",
) -> Path:
    """A wheel of sglang in `folder`. `pins` is what it requires, and `distribution` its name there."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{distribution.replace('-', '_')}-{version}"
    wheel = folder / f"{name}-py3-none-any.whl"
    info = f"{name}.dist-info"
    content = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nRequires-Dist: {pins}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    return pack(wheel, info, content)


def pack(wheel: Path, info: str, content: Mapping[str, str]) -> Path:
    """Write a wheel of these files; `info` is its folder of metadata, which gets the RECORD."""
    record = f"{info}/RECORD"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
        archive.writestr(record, "".join(f"{_entry(*each)}\n" for each in content.items()) + f"{record},,\n")
    return wheel


def _entry(name: str, text: str) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(text.encode())}"
