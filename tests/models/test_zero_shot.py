"""Zero-shot classifiers: against each library's own pipeline, and what makes one another model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from clips import answers, draw, pictures
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

import robustkit
from attacks import FeaturePGD, ThreatModel
from robustkit.common.preprocessing import Preprocessing
from robustkit.data import shapes
from robustkit.data.dataset import open_dataset
from robustkit.errors import CheckpointError, DataError, ModelError
from robustkit.models import zero_shot
from robustkit.models.setup_check import Bench, Setup, fit_part, form_of
from robustkit.models.zero_shot import FORMS, Prompts, WordTower, ZeroShot, canonical_text, kept_rows, read_classes

pytestmark = pytest.mark.usefixtures("one_thread", "cache")
WORDS = ["<pad>", "<s>", "</s>", "<unk>", "a", "photo", "of", "this", "is", "cat", "dog", "car", "old", "."]
CLASSES, TEMPLATES = ("cat", "dog", "old car"), ("a photo of a {}.", "this is a {}.")
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTKIT_CACHE", str(tmp_path / "cache"))


def write_tokenizer(folder: Path, words: list[str]) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    plain = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = {"special_tokens": [("<s>", 1), ("</s>", 2)]}
    plain.post_processor = processors.TemplateProcessing(single="<s> $A </s>", **ends)
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=plain, model_max_length=64, **names).save_pretrained(folder)


def write_hugging_face(kind: str, folder: Path) -> Any:
    t = pytest.importorskip("transformers", reason='transformers is an extra: pip install ".[hf]"')
    ends = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    text = {**SMALL, "vocab_size": 40, "max_position_embeddings": 64, **ends}
    vision = {**SMALL, "image_size": 32, "patch_size": 8}
    if kind == "clip":
        model = t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=vision, projection_dim=24))
        processor = t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    elif kind == "siglip":
        model = t.SiglipModel(t.SiglipConfig(text_config={**text, "projection_size": 32}, vision_config=vision))
        processor = t.SiglipImageProcessor(size={"height": 32, "width": 32})
    else:
        vision = {**SMALL, "patch_size": 8, "num_patches": 16}
        model = t.Siglip2Model(t.Siglip2Config(text_config={**text, "projection_size": 32}, vision_config=vision))
        processor = t.Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    draw(model).save_pretrained(folder)
    processor.save_pretrained(folder)
    write_tokenizer(folder, WORDS + [f"w{place}" for place in range(40 - len(WORDS))])
    return model


def _images_of(inputs: Any) -> dict[str, Tensor]:
    return {name: value for name, value in inputs.items() if isinstance(value, Tensor)}


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2"])
def test_the_logits_are_those_of_transformers_own_pipeline(kind: str, tmp_path: Path) -> None:
    model = write_hugging_face(kind, tmp_path)
    from transformers import pipeline

    theirs = pipeline("zero-shot-image-classification", model=str(tmp_path))
    one = robustkit.load(f"hf:{tmp_path}", classes=CLASSES, prompts=TEMPLATES[0], text="written")
    both = robustkit.load(f"hf:{tmp_path}", classes=CLASSES, prompts=TEMPLATES, text="written")
    scale, bias = model.logit_scale.exp(), getattr(model, "logit_bias", 0.0)
    for image in pictures(squares=True):
        shown = [theirs.preprocess(image, CLASSES, hypothesis_template=template) for template in TEMPLATES]
        with torch.no_grad():
            made = [model(**each.pop("text_inputs")[0], **_images_of(each)) for each in shown]
            assert answers(one, image).numpy() == pytest.approx(made[0].logits_per_image[0].numpy(), abs=1e-5)
            rows = functional.normalize(torch.stack([each.text_embeds for each in made]).mean(0), dim=-1)
            expected = scale * made[0].image_embeds @ rows.T + bias
        assert answers(both, image).numpy() == pytest.approx(expected[0].numpy(), abs=1e-5)
    spread = torch.stack([answers(one, image) for image in pictures(squares=True)]).std(dim=0)
    assert (spread > 1e-3).all()  # the comparison is of answers that differ


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_the_form_of_sentences_is_stated_or_assumed(kind: str, tmp_path: Path) -> None:
    model, classes = write_hugging_face(kind, tmp_path), ("Cat", "dog", "old_car")
    from transformers import pipeline

    theirs = pipeline("zero-shot-image-classification", model=str(tmp_path))
    image = next(pictures(squares=True))
    usual = robustkit.load(f"hf:{tmp_path}", classes=classes)
    stated = robustkit.load(f"hf:{tmp_path}", classes=classes, text="canonical" if kind == "siglip" else "written")
    plain = ["a photo of a cat", "a photo of a dog", "a photo of a old car"]
    sentences = plain if kind == "siglip" else [f"a photo of a {name}." for name in classes]
    shown = theirs.preprocess(image, sentences, hypothesis_template="{}")
    with torch.no_grad():
        expected = model(**shown.pop("text_inputs")[0], **_images_of(shown)).logits_per_image[0]
    for classifier in (usual, stated):
        assert answers(classifier, image).numpy() == pytest.approx(expected.numpy(), abs=1e-5)
    sources = [classifier.identity.preprocessing_source.get("text") for classifier in (usual, stated)]
    assert sources == (["family", "option"] if kind == "siglip" else [None, None])
    other = robustkit.load(f"hf:{tmp_path}", classes=classes, text="written" if kind == "siglip" else "canonical")
    assert (answers(other, image) - expected).abs().max() > 1e-3
    assert other.identity.code_sha256 != usual.identity.code_sha256 == stated.identity.code_sha256
    with pytest.raises(ModelError, match="--text lower: expected written or canonical"):
        robustkit.load(f"hf:{tmp_path}", classes=classes, text="lower")


def test_canonical_sentences() -> None:
    for sentence, plain in (
        ("A photo of a Cat's-eye, one_two.", "a photo of a catseye one two"),
        (" a  B!\n", "a b"),
    ):
        assert canonical_text(sentence) == plain


def test_another_form_of_sentences_that_fits_better_is_found() -> None:
    torch.manual_seed(0)
    pixels = torch.randint(256, (64, 3, 1, 1), dtype=torch.uint8)
    rows = {form: functional.normalize(torch.randn(4, 3), dim=-1) for form in FORMS}
    network = ZeroShot(nn.Flatten(), rows["canonical"], 30.0)
    assert network.reading("written") is network
    network.forms = {"written": rows["written"]}
    labels = (functional.normalize(pixels.flatten(1) / 255 - 0.5, dim=-1) @ rows["written"].T).argmax(dim=1)

    def score(logits: Tensor, places: Any, order: str) -> Tensor:
        own = labels[list(places)]
        nll = functional.cross_entropy(logits, own, reduction="none").double()
        return torch.stack([nll, (logits.argmax(dim=1) == own).double()], dim=1)

    bench = Bench(network, lambda place, _: pixels[place], 64, score, 16, torch.device("cpu"))
    p = Preprocessing((1, 1), (0.5,) * 3, (1.0,) * 3, "bicubic", 1.0, "center")
    for form, verdict in (("canonical", "another-fits-better"), ("written", "fits")):
        network.rows, network.forms = rows[form], {other: rows[other] for other in FORMS if other != form}
        bench._losses.clear()
        bench._logits.clear()
        fit = fit_part(bench, "text", Setup(p, text=form_of(network, {"text": form})), {}, 1.386)
        assert (fit.best.name, fit.verdict) == ("written", verdict)
        assert fit.best.setup.option("text") == "give --text written"


def test_openais_names_of_imagenet() -> None:
    open_clip = pytest.importorskip("open_clip", reason='open_clip is an extra: pip install ".[clip]"')
    names = read_classes("imagenet-openai")
    assert names == tuple(open_clip.IMAGENET_CLASSNAMES) != read_classes("imagenet")
    assert (names[2], len(set(names))) == ("great white shark", 998)  # two names stand for two classes each


@pytest.fixture
def towers(tmp_path: Path) -> Path:
    """A file with two towers: timm's ViT, and words."""
    torch.manual_seed(0)
    shape = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2, "num_classes": 12}
    image = timm.create_model("vit_tiny_patch16_224", **shape)
    sizes = {"width": 16, "depth": 2, "heads": 2, "length": 6, "features": 12}
    text = WordTower(["cat", "dog", "photo"], **sizes)
    tensors = {f"image.{k}": v for k, v in image.state_dict().items()}
    tensors |= {f"text.{k}": v for k, v in text.state_dict().items()}
    said = {
        "task": "zero-shot",
        "arch": "vit_tiny_patch16_224",
        "attention": "standard",
        "logit_scale": 20.0,
        "arch_kwargs": shape,
        "text_tower": {"words": ["cat", "dog", "photo"], **sizes},
        "mean": [0.5] * 3,
        "std": [0.5] * 3,
        "class_names": ["cat", "dog"],
    }
    path = tmp_path / "towers.safetensors"
    save_file(tensors, path, {k: v if isinstance(v, str) else json.dumps(v) for k, v in said.items()})
    return path


def test_padding_changes_no_sentence_and_unknown_words_are_refused() -> None:
    torch.manual_seed(0)
    sizes = {"width": 16, "depth": 2, "heads": 2, "features": 12}
    long = WordTower(["cat", "dog"], length=9, **sizes).eval()
    short = WordTower(["cat", "dog"], length=3, **sizes).eval()
    short.load_state_dict({k: v[:3] if k == "positions" else v for k, v in long.state_dict().items()})
    with torch.no_grad():
        assert long.encode(["A cat, dog!"]).numpy() == pytest.approx(short.encode(["a cat dog"]).numpy(), abs=1e-6)
    with pytest.raises(ModelError, match="'ein Hund': none of its words is among the 2 known ones"):
        long.tokens(["cat", "ein Hund"])


def test_other_text_is_another_model_and_rows_are_made_once(towers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    encode = WordTower.encode
    monkeypatch.setattr(WordTower, "encode", lambda self, texts: asked.extend(texts) or encode(self, texts))
    first = robustkit.load(towers)
    assert first.identity.class_names == ("cat", "dog") and asked == ["a photo of a cat.", "a photo of a dog."]
    again = robustkit.load(towers)
    assert len(asked) == 2 and again.identity.code_sha256 == first.identity.code_sha256
    assert torch.equal(again.network.rows, first.network.rows)
    others = [robustkit.load(towers, prompts="{}"), robustkit.load(towers, classes=["dog", "cat"])]
    assert len({one.identity.code_sha256 for one in (first, *others)}) == 3 and len(asked) == 6
    assert {one.identity.sha256 for one in others} == {first.identity.sha256}
    assert "zero-shot: 2 classes (given), template 'a photo of a {}.'" in others[1].identity.notes
    image = torch.rand(2, 3, 32, 32)
    assert torch.equal(first(image), others[1](image).flip(1))
    broken = next((zero_shot.cache_folder()).iterdir())
    broken.write_bytes(b"no tensors")
    assert torch.equal(robustkit.load(towers).network.rows, first.network.rows)


def test_rows_are_averaged_after_each_has_length_one() -> None:
    rows = {"a x": [3.0, 0.0], "b x": [0.0, 1.0], "a y": [0.0, -2.0], "b y": [0.0, -1.0]}
    prompts = Prompts(("x", "y"), ("a {}", "b {}"), "", "")
    made = prompts.rows(lambda texts: torch.tensor([rows[text] for text in texts]))
    assert made.numpy() == pytest.approx(np.array([[0.5**0.5, 0.5**0.5], [0.0, -1.0]]))
    assert kept_rows(["one"], lambda: made) is made
    assert torch.equal(kept_rows(["one"], lambda: pytest.fail("made again")), made)
    assert len(set(read_classes("imagenet"))) == 1000 and read_classes("imagenet")[0] == "tench"


def test_embeddings_are_attacked_without_labels(towers: Path, tmp_path: Path) -> None:
    """`pgd(loss=embedding)` in an audit is `FeaturePGD` on what the head takes."""
    options = {"attacks": "fgsm,pgd(loss=embedding,steps=5)", "eps": "4/255", "limit": 8, "evidence": "none"}
    (tmp_path / "names.txt").write_text("\n".join(shapes.CLASSES))
    said = {"classes": str(tmp_path / "names.txt"), "prompts": "photo of {}"}
    run = robustkit.audit(str(towers), "embedded:shapes", out=tmp_path / "run", **said, **options)
    record = run.table("towers", "pgd(eps=4/255,steps=5,loss=embedding)").to_pandas()
    assert record["linf"].max() == pytest.approx(4 / 255, abs=1e-6) and (record["forwards"] == 7).all()
    model, image = robustkit.load(towers), torch.rand(3, 3, 32, 32)

    def embedding(images: Tensor) -> Tensor:
        return model.network.embed(model.normalize(images))

    def alike(images: Tensor) -> Tensor:
        return functional.cosine_similarity(embedding(images), embedding(image))

    found = FeaturePGD(ThreatModel("linf", 4 / 255), steps=5).run(embedding, image)
    noise = (image + 4 / 255 * torch.randn_like(image).sign()).clamp(0, 1)
    assert (alike(found.adversarials) < alike(noise)).all()


@pytest.mark.parametrize(
    ("files", "options", "said"),
    [
        ({}, {"classes": "names.txt"}, "--classes names.txt: unknown file"),
        ({"c.txt": "cat\n"}, {"classes": "c.txt"}, "--classes c.txt: 1 class; expected two or more, one per line"),
        ({"c.txt": "cat\ndog\ncat\n"}, {"classes": "c.txt"}, "'cat' is listed twice"),
        ({"c.txt": "cat\nd\u202eog\n"}, {"classes": "c.txt"}, "printable characters"),
        ({"p.txt": "a photo of a {}\na photo\n"}, {"prompts": "p.txt"}, "--prompts p.txt: 'a photo' has no {}"),
        ({"p.txt": ""}, {"prompts": "p.txt"}, "--prompts p.txt: 0 lines"),
        ({}, {"classes": "ein,Hund"}, "--classes ein,Hund: unknown file"),
    ],
)
def test_text_that_cannot_be_used_is_refused_in_a_line(
    files: dict[str, str], options: dict[str, str], said: str, towers: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        Path(name).write_text(text, "utf-8")
    with pytest.raises(ModelError) as fault:
        robustkit.load(towers, **options)
    assert said in str(fault.value) and "\n" not in str(fault.value)


@pytest.mark.parametrize("given", [{"classes": []}, {"classes": ["cat", 3]}, {"classes": ["cat", "cat"]}])
def test_words_given_in_python_are_checked_as_those_of_files(given: dict[str, Any], towers: Path) -> None:
    with pytest.raises(ModelError, match="expected texts, each once"):
        robustkit.load(towers, **given)
    with pytest.raises(ModelError, match=r"expected texts, each once, with \{\} for the class"):
        robustkit.load(towers, prompts=["no braces"])
    for options in ({"num_classes": 7}, {"arch": "resnet18"}):
        with pytest.raises(ModelError, match=r"--num-classes 7, but 2 classes|--arch resnet18 does not apply"):
            robustkit.load(towers, **options)


def test_another_tokenizer_is_another_model_and_features_need_no_text(tmp_path: Path) -> None:
    write_hugging_face("clip", tmp_path)
    first = robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
    write_tokenizer(tmp_path, [*WORDS[:10], *WORDS[10:12][::-1], *WORDS[12:], *(f"w{n}" for n in range(26))])
    other = robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
    assert first.identity.code_sha256 != other.identity.code_sha256
    assert not torch.allclose(first.network.rows, other.network.rows)
    features = robustkit.load(f"hf:{tmp_path}", features=True)
    image = torch.rand(2, 3, 32, 32)
    assert torch.equal(features(image), first.network.embed(first.normalize(image)))
    with pytest.raises(ModelError, match="--allow-partial does not apply"):
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES, allow_partial=True)


def test_labels_follow_the_names_of_the_classes() -> None:
    plain = open_dataset("embedded:shapes")
    names = ["Star", "dog", *(name for name in shapes.CLASSES if name != "star")]
    found = open_dataset("embedded:shapes", num_classes=11, class_names=names)
    assert [names[sample.label].lower() for sample in found.samples[:20]] == [
        shapes.CLASSES[sample.label] for sample in plain.samples[:20]
    ]
    with pytest.raises(DataError, match="shows arrow, but the model's classes are Star, dog, crescent"):
        open_dataset("embedded:shapes", num_classes=10, class_names=[name for name in names if name != "arrow"])


def test_folders_that_are_no_zero_shot_model_are_refused_in_a_line(tmp_path: Path) -> None:
    write_hugging_face("clip", tmp_path)
    with pytest.raises(ModelError, match="takes its classes from text; give --classes FILE"):
        robustkit.load(f"hf:{tmp_path}")
    write_tokenizer(tmp_path, WORDS)
    another = (
        "the tokenizer has 14 tokens and the text tower 40; expected the tokenizer that the model was trained with"
    )
    with pytest.raises(CheckpointError, match=another):
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer next to config\.json"):
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
    config = json.loads((tmp_path / "config.json").read_text())
    alone = config["vision_config"] | {"model_type": "clip_vision_model", "architectures": ["CLIPVisionModel"]}
    (tmp_path / "config.json").write_text(json.dumps(alone))
    with pytest.raises(CheckpointError, match="one tower alone; expected the whole model"):
        robustkit.load(f"hf:{tmp_path}", classes=CLASSES)
    with pytest.raises(
        ModelError, match=r"--classes cifar10 does not apply to zoo:shapes-vit-quest, whose head is not"
    ):
        robustkit.load("zoo:shapes-vit-quest", classes="cifar10")
