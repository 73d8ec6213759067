// What clang, and so Swift, makes of the module map: no text is included, the module alone brings the names.
@import CThalweg;

int main(void) {
  thalweg_linear_args args;
  thalweg_linear_args_init(&args);
  args.weight.dtype = THALWEG_Q8_0;
  size_t bytes = 0;
  // No tensors: refused, with the operation's name.
  return thalweg_linear_workspace_size(&args, 0, &bytes) == THALWEG_INVALID &&
                 thalweg_error_operation()[0] == 'l'
             ? 0
             : 1;
}
