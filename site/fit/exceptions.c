// The tag that every C++ exception has in WebAssembly: one for the whole program.
__asm__(".tagtype __cpp_exception i32\n"
        ".globl __cpp_exception\n"
        "__cpp_exception:\n");
