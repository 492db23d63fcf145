# python -m build --wheel && docker build -t icecore . && docker run -v "$PWD:/work" icecore run reviews.csv
FROM python:3.12-slim
WORKDIR /wheel
COPY dist/icecore-0.1.0-py3-none-any.whl constraints.txt ./
# Without a GPU: pin torch's CPU build, and let pip know an index that has it (docs/install.md).
RUN pip install --no-cache-dir -c constraints.txt './icecore-0.1.0-py3-none-any.whl[gguf]'
RUN icecore version
RUN icecore fetch smollm2-135m-instruct
WORKDIR /work
ENTRYPOINT ["icecore"]
CMD ["--help"]
