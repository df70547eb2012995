# The tag that every C++ exception has in WebAssembly: one for the whole program.
	.tagtype	__cpp_exception i32
	.globl	__cpp_exception
__cpp_exception:
