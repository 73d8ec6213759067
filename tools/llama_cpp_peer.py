"""llama.cpp as a peer, through PyPI's llama-cpp-python (0.3.36 knows these architectures):

    CMAKE_ARGS="-DLLAVA_BUILD=OFF" pip install llama-cpp-python
"""

import ctypes

import llama_cpp
import numpy as np

KEPT_LOG = []  # llama.cpp holds the callback's address only


def silence():
    @llama_cpp.llama_log_callback
    def ignore(level, text, data):
        pass

    KEPT_LOG.append(ignore)
    llama_cpp.llama_log_set(ignore, ctypes.c_void_p(0))


class LlamaCpp:
    """A GGUF file with one sequence, on the CPU, attention and its cache in F32: what is left of llama.cpp's own
    roundings is that of activations against quantized weights."""

    def __init__(self, path, context, threads=2):
        silence()
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        params.use_extra_bufts = False  # weights as in the file: no tiles of AMX, which not every machine permits
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp does not load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = context
        params.n_ubatch = min(context, 512)
        params.n_threads = params.n_threads_batch = threads
        params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise SystemExit(f"llama.cpp does not run {path}")
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(context, 0, 1)
        self.past = 0

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.context)
        llama_cpp.llama_model_free(self.model)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.past = 0

    def eval(self, ids, every=False):
        """Logits [len(ids), vocabulary] behind each token, or [vocabulary] behind the last one."""
        self.batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            self.batch.token[i] = token
            self.batch.pos[i] = self.past + i
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = 0
            self.batch.logits[i] = every or i + 1 == len(ids)
        status = llama_cpp.llama_decode(self.context, self.batch)
        if status != 0:
            raise SystemExit(f"llama_decode gave {status}")
        self.past += len(ids)
        rows = range(len(ids)) if every else [len(ids) - 1]
        pointers = [llama_cpp.llama_get_logits_ith(self.context, i) for i in rows]
        logits = np.stack([np.ctypeslib.as_array(pointer, (self.vocabulary,)) for pointer in pointers])
        return logits if every else logits[0]

    def tokenize(self, text):
        data = text.encode()
        ids = (ctypes.c_int32 * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self.vocab, data, len(data), ids, len(ids), False, False)
        return list(ids[:count])

    def text_of(self, ids):
        data = b""
        for token in ids:
            piece = ctypes.create_string_buffer(256)
            size = llama_cpp.llama_token_to_piece(self.vocab, token, piece, len(piece), 0, True)
            data += piece.raw[:size]
        return data.decode(errors="replace")
