// The Objective-C runtime and Foundation of the emulator: reference counts, weak references, blocks, literals, messages to nil; then the device's.
#import <Metal/Metal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <atomic>
#include <string>

static int failures, deallocations;
#define EXPECT(condition)                                         \
  do {                                                            \
    if (!(condition)) {                                           \
      failures++;                                                 \
      printf("FAIL line %d: %s\n", __LINE__, #condition);         \
    }                                                             \
  } while (0)

@interface Node : NSObject {
  std::string name;
}
@property(nonatomic, strong) Node* next;
@property(nonatomic, weak) Node* parent;
@property(nonatomic, copy) int (^function)(int);
- (instancetype)initWithName:(const char*)n;
- (const char*)cname;
@end
@implementation Node
@synthesize next, parent, function;
- (instancetype)initWithName:(const char*)n {
  if ((self = [super init])) name = n;
  return self;
}
- (const char*)cname { return name.c_str(); }
- (void)dealloc { deallocations++; }
@end

@interface Sub : Node
@end
@implementation Sub
- (const char*)cname { return [[NSString stringWithFormat:@"sub-%s-%d", [super cname], 7] UTF8String]; }
@end

static void test_references() {
  @autoreleasepool {
    Node* a = [[Node alloc] initWithName:"a"];
    @autoreleasepool {
      a.next = [[Sub alloc] initWithName:"b"];
      a.next.parent = a;
      EXPECT(a.next.parent == a);
      EXPECT(!strcmp(a.next.cname, "sub-b-7"));
    }
    __weak Node* weak = a;
    @autoreleasepool { EXPECT(weak != nil); }
    a = nil;
    EXPECT(weak == nil);
  }
  EXPECT(deallocations == 2);
  @autoreleasepool {
    Node* a = [Node new];
    int factor = 5;
    __block int sum = 0;
    a.function = ^(int x) {
      sum += x;
      return x * factor;
    };
    EXPECT(a.function(3) == 15);
    EXPECT(a.function(4) == 20);
    EXPECT(sum == 7);
    __weak Node* weak = a;
    a.function = ^(int x) {
      Node* strong = weak;
      return strong ? x : -1;
    };
    EXPECT(a.function(1) == 1);
  }
  EXPECT(deallocations == 3);
  Node* cycle = [Node new];
  cycle.next = cycle;
  __weak Node* weak = cycle;
  cycle.next = nil;
  cycle = nil;
  EXPECT(weak == nil);
}

static void test_foundation() {
  NSArray<NSString*>* array = @[ @"x", @"y" ];
  EXPECT(array.count == 2 && [array[1] isEqualToString:@"y"]);
  NSDictionary* dictionary = @{@"K" : @3, @"L" : @"s"};
  EXPECT([dictionary[@"K"] intValue] == 3);
  EXPECT(dictionary[@"zz"] == nil);
  NSString* none = nil;
  EXPECT(none.length == 0);
  MTLSize zero = [(id<MTLDevice>)nil maxThreadsPerThreadgroup];
  EXPECT(zero.width == 0 && zero.depth == 0);
}

static void test_commands(id<MTLDevice> device) {
  static std::atomic<int> done;
  id<MTLBuffer> buffer = [device newBufferWithLength:64 options:MTLResourceStorageModeShared];
  id<MTLCommandBuffer> commands = [[device newCommandQueue] commandBuffer];
  id<MTLBlitCommandEncoder> blit = [commands blitCommandEncoder];
  [blit fillBuffer:buffer range:NSMakeRange(0, 64) value:7];
  [blit endEncoding];
  NSString* captured = [NSString stringWithFormat:@"%@-%lu", @"cap", 3ul];
  [commands addCompletedHandler:^(id<MTLCommandBuffer> c) {
    if (c.status == MTLCommandBufferStatusCompleted && [captured isEqualToString:@"cap-3"]) done++;
  }];
  [commands commit];
  [commands waitUntilCompleted];
  struct timespec millisecond = {0, 1000000};
  for (int i = 0; i < 1000 && !done; i++) nanosleep(&millisecond, nullptr);
  EXPECT(done == 1);
  EXPECT(((char*)buffer.contents)[63] == 7);
}

static void test_no_copy(id<MTLDevice> device) {
  __block int freed = 0;
  void* memory = aligned_alloc(16384, 32768);
  memset(memory, 0, 32768);
  @autoreleasepool {
    id<MTLBuffer> buffer = [device newBufferWithBytesNoCopy:memory length:32768 options:MTLResourceStorageModeShared deallocator:^(void* p, NSUInteger n) {
      freed += (int)n;
      free(p);
    }];
    EXPECT(buffer.contents == memory);
  }
  EXPECT(freed == 32768);
}

static void test_library(id<MTLDevice> device) {
  NSError* error = nil;
  id<MTLLibrary> library = [device newLibraryWithSource:@"kernel void k(device float *x [[buffer(0)]]) { x[0] = nope; }" options:nil error:&error];
  EXPECT(!library && error && strstr(error.localizedDescription.UTF8String, "nope"));
  MTLCompileOptions* options = [MTLCompileOptions new];
  options.preprocessorMacros = @{@"VALUE" : @42};
  NSString* text = @"#include <metal_stdlib>\nkernel void k(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] = VALUE + i; }";
  library = [device newLibraryWithSource:text options:options error:&error];
  EXPECT(library && library.functionNames.count == 1);
  id<MTLComputePipelineState> pipeline = [device newComputePipelineStateWithFunction:[library newFunctionWithName:@"k"] error:&error];
  id<MTLBuffer> buffer = [device newBufferWithLength:40 options:0];
  id<MTLCommandBuffer> commands = [[device newCommandQueue] commandBuffer];
  id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoder];
  [encoder setComputePipelineState:pipeline];
  [encoder setBuffer:buffer offset:0 atIndex:0];
  [encoder dispatchThreads:MTLSizeMake(10, 1, 1) threadsPerThreadgroup:MTLSizeMake(4, 1, 1)];
  [encoder endEncoding];
  [commands commit];
  [commands waitUntilCompleted];
  EXPECT(((float*)buffer.contents)[9] == 51.0f);
}

int main() {
  @autoreleasepool {
    test_references();
    test_foundation();
    id<MTLDevice> device = MTLCreateSystemDefaultDevice();
    EXPECT(device.maxThreadsPerThreadgroup.width == 1024);
    EXPECT([device.name isKindOfClass:[NSString class]]);
    EXPECT([device respondsToSelector:@selector(newCommandQueue)]);
    test_commands(device);
    test_no_copy(device);
    test_library(device);
  }
  printf("%d failures\n", failures);
  return failures;
}
