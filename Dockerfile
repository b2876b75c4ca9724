# RobustKit on a CPU:
#
#     docker build -t robustkit .
#     docker run --rm -v "$PWD:/work" robustkit audit model.safetensors --data-dir val --limit 200
#
# With torch's build for CUDA (run it with --gpus all):
#
#     docker build -t robustkit:cuda --build-arg TORCH_INDEX=https://pypi.org/simple .
ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
RUN python -m venv /opt/robustkit
# torch first and alone: changes to RobustKit's source do not rebuild this layer.
RUN /opt/robustkit/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" torch torchvision
COPY . .
RUN /opt/robustkit/bin/pip install --no-cache-dir .

FROM python:${PYTHON}-slim
RUN useradd --create-home --uid 1000 robustkit
COPY --from=build /opt/robustkit /opt/robustkit
ENV PATH=/opt/robustkit/bin:$PATH
USER robustkit
WORKDIR /work
ENTRYPOINT ["robustkit"]
CMD ["--help"]
