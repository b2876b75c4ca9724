"""Package list and metadata; pyproject.toml holds the tools' settings."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent

setup(
    name="robustkit-audit",  # PyPI's `robustkit` is another project; imports and command stay `robustkit`
    version="0.1.0",
    description="Audits the robustness and explainability of vision checkpoints",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="RobustKit developers",
    keywords="robustness adversarial-attacks corruptions explainability vision-transformer imagenet-c pytorch",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=find_packages(include=["attacks", "cam", "corruptions", "robustkit", "robustkit.*"]),
    package_data={
        "attacks": ["py.typed", "*.pyi"],
        "cam": ["py.typed", "*.pyi"],
        "corruptions": ["py.typed", "*.pyi", "ice/*.png"],
        "robustkit": ["py.typed", "*.pyi", "*/*.pyi", "*/findings.toml"],
        **{f"robustkit.{room}": ["**/*.toml"] for room in ("evaluations", "models", "tasks")},
        "robustkit.embedded": ["*.safetensors", "*.json"],
        "robustkit.display": ["web/*"],
        "robustkit.protocol": ["presets.toml", "cards/*.toml"],
        "robustkit.report": ["references.bib", "templates/*", "templates/parts/*"],
        "robustkit.results": ["references/*.toml"],
        "robustkit.slices": ["*/*.pyi", "*/entry_points.txt", "**/*.toml", "*/templates/**"],
    },
    entry_points={"console_scripts": ["robustkit = robustkit.cli:main"]},
    install_requires=[
        "torch>=2.6",
        "timm>=1.0.31",  # before, its centre crop to a frame that is not square ignored the interpolation
        "safetensors>=0.4.5",
        "numpy>=1.26",
        "pillow>=10.1",
        "scikit-image>=0.22",
        "scipy>=1.11",
        "tifffile>=2022.8.12",  # bands of TIFF, which Pillow reads as RGB; scikit-image needs it, too
        "opencv-python-headless>=4.8",
        "pyarrow>=17.0",
        "pandas>=2.2",
        "click>=8.1",
        "lazy-loader>=0.6",  # before, cam.overlay was a module once something had imported it
        "msgspec>=0.22",  # run.json as typed values, checked as they are read
        "rich>=13.7",
        "jinja2>=3.1",
        "matplotlib>=3.8",
        "pyyaml>=6.0",
        "tomli>=2.0; python_version < '3.11'",
    ],
    extras_require={
        "test": [
            *("pytest>=8.2", "pytest-timeout>=2.3.1", "pytest-xdist>=3.8", "setuptools>=77"),
            *("hypothesis>=6.100", "import-linter>=2.3"),
            *("pyautoattack>=0.2", "torchmetrics>=1.4"),  # outside implementations to check against
            *("in-toto-attestation>=0.9.3", "jsonschema>=4.23", "maite>=0.9"),  # schemas and protocols, likewise
            "pycocotools>=2.0.8",  # average precision and masks, likewise
            "scikit-learn>=1.5",  # nearest neighbours, probes and average precision, likewise
            "statsmodels>=0.14",  # regression with cluster-robust errors, likewise
            "transformers>=5.18",  # its checkpoints, and its pipeline to check against
            "open_clip_torch>=3.3",  # likewise
            "torch_geometric>=2.6",  # for examples/graphs
            *("onnx>=1.17", "onnxruntime>=1.20", "onnxscript>=0.6"),  # run exported graphs; torch.onnx writes them
        ],
        "reference": [  # peers, for scripts/bench and --engine
            *("pyautoattack>=0.2", "torchattacks>=3.5", "foolbox>=3.3", "imagecorruptions==1.1.2"),
            *("grad-cam>=1.5.5", "captum>=0.8", "quantus>=0.6", "torchray>=1.0"),
        ],
        "hf": ["transformers>=5.18"],  # before, DINOv2 names the projections of its attention otherwise
        "clip": ["open_clip_torch>=3.3"],  # builds its towers, and splits text into tokens
        "onnx": ["onnx>=1.17", "onnxruntime>=1.20"],  # reads and runs exported classifiers
        "maite": ["maite>=0.9"],  # the protocols that robustkit.slices.maite follows; it works without the package
        "text": ["transformers>=5.18"],  # its causal language models and their tokenizers
        "ray": ["ray>=2.40"],
        "loggers": ["tensorboard>=2.18", "mlflow>=2.22", "wandb>=0.19.11"],
        "docs": [
            *("mkdocs>=1.6,<2", "mkdocs-material>=9.6", "mkdocstrings>=0.30", "mkdocstrings-python>=1.18"),
            *("nbconvert>=7.16", "ipykernel>=6.29"),  # the notebooks are executed as the site is built
            "latex2mathml>=3.77",  # formulas become MathML, which a browser shows without a script
        ],
        "dev": ["ruff>=0.9", "mypy>=1.14", "codespell>=2.3"],
    },
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
        "Topic :: Software Development :: Testing",
        "Typing :: Typed",
    ],
)
