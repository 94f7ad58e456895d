// What make metal-cross must refuse: a property of macOS 15 in a library for macOS 13, used without asking for the system.
#import <Metal/Metal.h>

void choose(MTLCompileOptions* options) { options.mathMode = MTLMathModeSafe; }
