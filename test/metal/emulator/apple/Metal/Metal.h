// Our own declarations of the compute part of the public Metal interface (names, types and values as documented by Apple).
#pragma once
#import <Foundation/Foundation.h>
#ifdef __cplusplus
#define MTL_EXTERN extern "C"
#else
#define MTL_EXTERN extern
#endif
#define MTL_SINCE(v) __attribute__((availability(macos, introduced = v)))
NS_ASSUME_NONNULL_BEGIN
typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger w, NSUInteger h, NSUInteger d) {
  MTLSize s = {w, h, d};
  return s;
}
#define MTLResourceCPUCacheModeShift 0
#define MTLResourceStorageModeShift 4
#define MTLResourceHazardTrackingModeShift 8
typedef NS_ENUM(NSUInteger, MTLStorageMode) {
  MTLStorageModeShared = 0,
  MTLStorageModeManaged = 1,
  MTLStorageModePrivate = 2,
  MTLStorageModeMemoryless = 3
};
typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) {
  MTLResourceCPUCacheModeDefaultCache = 0,
  MTLResourceCPUCacheModeWriteCombined = 1,
  MTLResourceStorageModeShared = 0,
  MTLResourceStorageModeManaged = 1 << 4,
  MTLResourceStorageModePrivate = 2 << 4,
  MTLResourceStorageModeMemoryless = 3 << 4,
  MTLResourceHazardTrackingModeDefault = 0,
  MTLResourceHazardTrackingModeUntracked = 1 << 8,
  MTLResourceHazardTrackingModeTracked = 2 << 8
};
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5
};
MTL_EXTERN NSErrorDomain const MTLCommandBufferErrorDomain;
typedef NS_ENUM(NSUInteger, MTLCommandBufferError) {
  MTLCommandBufferErrorNone = 0,
  MTLCommandBufferErrorInternal = 1,
  MTLCommandBufferErrorTimeout = 2,
  MTLCommandBufferErrorPageFault = 3,
  MTLCommandBufferErrorAccessRevoked = 4,
  MTLCommandBufferErrorNotPermitted = 7,
  MTLCommandBufferErrorOutOfMemory = 8,
  MTLCommandBufferErrorInvalidResource = 9,
  MTLCommandBufferErrorDeviceRemoved = 11,
  MTLCommandBufferErrorStackOverflow = 12
};
typedef NS_ENUM(NSUInteger, MTLDispatchType) { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent };
typedef NS_OPTIONS(NSUInteger, MTLBarrierScope) { MTLBarrierScopeBuffers = 1, MTLBarrierScopeTextures = 2 };
typedef NS_ENUM(NSUInteger, MTLDataType) {
  MTLDataTypeNone = 0,
  MTLDataTypeFloat = 3,
  MTLDataTypeHalf = 16,
  MTLDataTypeInt = 29,
  MTLDataTypeUInt = 33,
  MTLDataTypeShort = 37,
  MTLDataTypeUShort = 41,
  MTLDataTypeBool = 53
};
typedef NS_ENUM(NSInteger, MTLGPUFamily) {
  MTLGPUFamilyApple7 = 1007,
  MTLGPUFamilyApple8 = 1008,
  MTLGPUFamilyApple9 = 1009,
  MTLGPUFamilyMac2 = 2002,
  MTLGPUFamilyCommon3 = 3003,
  MTLGPUFamilyMetal3 = 5001
};
typedef NS_ENUM(NSUInteger, MTLLanguageVersion) {
  MTLLanguageVersion2_4 = (2 << 16) + 4,
  MTLLanguageVersion3_0 = 3 << 16,
  MTLLanguageVersion3_1 = (3 << 16) + 1,
  MTLLanguageVersion3_2 = (3 << 16) + 2
};
typedef NS_ENUM(NSInteger, MTLMathMode) { MTLMathModeSafe = 0, MTLMathModeRelaxed = 1, MTLMathModeFast = 2 };
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) { MTLPipelineOptionNone = 0 };
@protocol MTLDevice
, MTLBuffer, MTLLibrary, MTLFunction, MTLComputePipelineState, MTLCommandQueue, MTLCommandBuffer, MTLComputeCommandEncoder,
    MTLBlitCommandEncoder, MTLResource, MTLAllocation, MTLResidencySet;
@interface MTLCompileOptions : NSObject
@property(nullable, copy) NSDictionary<NSString*, NSObject*>* preprocessorMacros;
@property BOOL fastMathEnabled;
@property MTLLanguageVersion languageVersion;
@property MTLMathMode mathMode MTL_SINCE(15.0);
@end
@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void*)v type:(MTLDataType)t atIndex:(NSUInteger)i;
@end
@protocol MTLAllocation <NSObject>
@property(readonly) NSUInteger allocatedSize;
@end
@protocol MTLResource <MTLAllocation>
@property(nullable, copy) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) MTLStorageMode storageMode;
@end
@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
- (void*)contents NS_RETURNS_INNER_POINTER;
- (void)didModifyRange:(NSRange)r;
@end
@protocol MTLFunction <NSObject>
@property(nullable, copy) NSString* label;
@property(readonly) NSString* name;
@end
@protocol MTLLibrary <NSObject>
@property(readonly) NSArray<NSString*>* functionNames;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)n;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)n
                                 constantValues:(MTLFunctionConstantValues*)v
                                          error:(__autoreleasing NSError* _Nullable* _Nullable)e;
@end
@protocol MTLComputePipelineState <NSObject>
@property(nullable, readonly) NSString* label;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup, threadExecutionWidth, staticThreadgroupMemoryLength;
@end
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);
@protocol MTLCommandEncoder <NSObject>
@property(nullable, copy) NSString* label;
- (void)endEncoding;
- (void)pushDebugGroup:(NSString*)s;
- (void)popDebugGroup;
@end
@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)p;
- (void)setBytes:(const void*)b length:(NSUInteger)n atIndex:(NSUInteger)i;
- (void)setBuffer:(nullable id<MTLBuffer>)b offset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)setBufferOffset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)setThreadgroupMemoryLength:(NSUInteger)n atIndex:(NSUInteger)i;
- (void)dispatchThreadgroups:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)dispatchThreads:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)memoryBarrierWithScope:(MTLBarrierScope)s;
- (void)memoryBarrierWithResources:(const id<MTLResource> _Nonnull[_Nonnull])r count:(NSUInteger)n;
@end
@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)copyFromBuffer:(id<MTLBuffer>)s
          sourceOffset:(NSUInteger)so
              toBuffer:(id<MTLBuffer>)d
     destinationOffset:(NSUInteger)o
                  size:(NSUInteger)n;
- (void)fillBuffer:(id<MTLBuffer>)b range:(NSRange)r value:(uint8_t)v;
@end
@protocol MTLCommandBuffer <NSObject>
@property(nullable, copy) NSString* label;
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError* error;
@property(readonly) BOOL retainedReferences;
@property(readonly) CFTimeInterval GPUStartTime, GPUEndTime;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)t;
- (nullable id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (void)enqueue;
- (void)commit;
- (void)waitUntilScheduled;
- (void)waitUntilCompleted;
- (void)addCompletedHandler:(MTLCommandBufferHandler)b;
@end
MTL_SINCE(15.0)
@interface MTLResidencySetDescriptor : NSObject
@property(nullable, copy) NSString* label;
@property NSUInteger initialCapacity;
@end
MTL_SINCE(15.0)
@protocol MTLResidencySet <NSObject>
@property(readonly) id<MTLDevice> device;
@property(nullable, readonly) NSString* label;
@property(readonly) uint64_t allocatedSize;
@property(readonly) NSUInteger allocationCount;
- (void)requestResidency;
- (void)endResidency;
- (void)addAllocation:(id<MTLAllocation>)a;
- (void)removeAllocation:(id<MTLAllocation>)a;
- (void)removeAllAllocations;
- (BOOL)containsAllocation:(id<MTLAllocation>)a;
- (void)commit;
@end
@protocol MTLCommandQueue <NSObject>
@property(nullable, copy) NSString* label;
- (void)addResidencySet:(id<MTLResidencySet>)s MTL_SINCE(15.0);
- (void)removeResidencySet:(id<MTLResidencySet>)s MTL_SINCE(15.0);
- (nullable id<MTLCommandBuffer>)commandBuffer;
- (nullable id<MTLCommandBuffer>)commandBufferWithUnretainedReferences;
@end
@protocol MTLDevice <NSObject>
@property(readonly) NSString* name;
@property(readonly) uint64_t registryID, recommendedMaxWorkingSetSize;
@property(readonly) MTLSize maxThreadsPerThreadgroup;
@property(readonly) BOOL hasUnifiedMemory;
@property(readonly) NSUInteger maxThreadgroupMemoryLength, maxBufferLength, currentAllocatedSize;
- (BOOL)supportsFamily:(MTLGPUFamily)f;
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)n;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)n options:(MTLResourceOptions)o;
- (nullable id<MTLBuffer>)newBufferWithBytes:(const void*)p length:(NSUInteger)n options:(MTLResourceOptions)o;
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)p
                                            length:(NSUInteger)n
                                           options:(MTLResourceOptions)o
                                       deallocator:(void (^_Nullable)(void* pointer, NSUInteger length))d;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString*)s
                                        options:(nullable MTLCompileOptions*)o
                                          error:(__autoreleasing NSError* _Nullable* _Nullable)e;
- (nullable id<MTLLibrary>)newLibraryWithURL:(NSURL*)u error:(__autoreleasing NSError* _Nullable* _Nullable)e;
- (nullable id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)f
                                                                      error:(__autoreleasing NSError* _Nullable* _Nullable)e;
- (nullable id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)d
                                                        error:(__autoreleasing NSError* _Nullable* _Nullable)e MTL_SINCE(15.0);
@end
MTL_EXTERN id<MTLDevice> _Nullable MTLCreateSystemDefaultDevice(void) __attribute__((ns_returns_retained));
NS_ASSUME_NONNULL_END
