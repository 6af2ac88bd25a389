# The service in a container, with the bundled model or another ONNX one (no PyTorch); docs/serve.md says how to run it.
FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir --constraint constraints.txt '.[serve]'

FROM python:3.12-slim-bookworm
COPY --from=build /venv /venv
RUN useradd --system --uid 10001 acclimate && install --directory --owner acclimate /data
USER acclimate
ENV PATH=/venv/bin:$PATH \
    ACCLIMATE_SERVE_HOST=0.0.0.0 \
    ACCLIMATE_SERVE_DATA=/data \
    ACCLIMATE_SERVE_TOKEN_FILE=/run/secrets/tokens
VOLUME /data
EXPOSE 8000
HEALTHCHECK --start-period=30s --interval=15s --timeout=5s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/health/live', timeout=4)"]
ENTRYPOINT ["acclimate", "serve"]
