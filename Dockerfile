# Paceline with PyTorch for CPUs:   docker build -t paceline . && docker run --rm paceline compare digits
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist

FROM python:3.11-slim
# compute="fused" compiles its code with g++.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY --from=build /dist /dist
COPY constraints.txt /dist/
# The index of PyTorch's builds for CPUs; give another one for CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --extra-index-url "$TORCH_INDEX" -c /dist/constraints.txt "$(ls /dist/*.whl)[train]"
RUN useradd --create-home trainer
USER trainer
WORKDIR /home/trainer
ENTRYPOINT ["paceline"]
CMD ["--help"]
